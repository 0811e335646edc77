"""The demo model that is shipped with Trilby, and the recipe that makes it."""
