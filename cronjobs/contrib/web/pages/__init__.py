"""One module per page. Each module queries the store and renders the HTML."""
