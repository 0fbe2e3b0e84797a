"""Charts: Vega-Lite specifications, made of the few numbers that they draw, each with a table that says the same.

Colors are names of CSS variables, so that the page decides what they are in light, in dark and on paper.
"""
