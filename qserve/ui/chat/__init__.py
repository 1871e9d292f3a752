"""The chat page's data and pictures of it: no component is made here."""
