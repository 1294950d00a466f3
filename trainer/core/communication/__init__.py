"""Communication of workers beside the strategy's: store, authentication of gloo groups, exchange of plain values."""
