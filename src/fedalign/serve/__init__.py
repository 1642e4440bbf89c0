"""How is a model served over HTTP? Predictions by label name, a page to try it, and limits on what a request may ask.

`app` holds the routes, `listen` the socket. Needs the extra `serve`; imports `inference` and what lies below it.
"""
