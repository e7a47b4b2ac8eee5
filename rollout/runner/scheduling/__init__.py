"""What the schedulers of the library are made of: a feed of tasks, a book of groups, and plans for them."""
