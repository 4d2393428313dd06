"""Everything that regenerates the paper, nothing the library needs.

`toy` is its first figure. For its comparison, `protocol` says what the runs are, `uci` does one, `raissi` is a baseline
that only the comparison has, `reported` is what the paper printed, `tables`, `findings` and `figures` show both;
`trips` and `dropout` are its networks; `commands` is the command line.
"""
