"""A server with known interfaces: JSON for every verb, LibreTranslate's and OpenAI's, and the page. It needs the extra `serve`."""
