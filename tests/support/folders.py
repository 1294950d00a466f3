"""Folders of the project that tests name."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
MODULES = TESTS / "modules"
"""What configs name as `_target_`, and programs import."""
SUPPORT = TESTS / "support"
CAMPAIGN = TESTS / "campaign"
ROOT = TESTS.parent
CONF = ROOT / "conf"
SHARED_DATA = ROOT.parent / "shared" / "data"
"""Real images beside the checkout; where they are absent, tests of them skip."""
