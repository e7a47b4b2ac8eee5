"""What the Linux kernel offers: system calls, namespaces, cgroups, Landlock, seccomp."""
