"""How often do label names occur together in a corpus? Reading, scanning and counting on all cores."""
