"""The side of sandboxes that runs in the process of the caller. Begin with `sandboxes`."""
