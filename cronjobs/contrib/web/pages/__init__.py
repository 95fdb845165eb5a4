"""One module per page, which queries the store and renders the HTML."""
