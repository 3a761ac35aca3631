"""What each page shows: read from the database into dataclasses, which templates of the same name render.

No page writes anything.
"""
