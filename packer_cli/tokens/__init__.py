"""Records to tokens: chat templates, encoding, loss masks, and the token store."""
