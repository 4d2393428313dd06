"""Everything that regenerates the paper, nothing the library needs: `toy` is its first figure."""
