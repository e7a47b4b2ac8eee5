"""Offers of the Linux kernel: system calls, namespaces, cgroups, Landlock, seccomp."""
