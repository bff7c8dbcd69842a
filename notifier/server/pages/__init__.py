"""The pages: HTML from the data of the API. Every value is escaped, and every page works without a script."""
