"""What an inspection draws of a network and its images: pictures, and values for histograms."""
