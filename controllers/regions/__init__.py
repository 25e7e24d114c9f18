"""Region folders of vGPU containers: made before a container starts, kept true while it runs, gone after it."""
