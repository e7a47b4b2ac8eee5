"""Programs that run inside of a sandbox. They import nothing of the library: their source is sent."""
