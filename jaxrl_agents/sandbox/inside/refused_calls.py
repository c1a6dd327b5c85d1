"""System calls that a sandbox refuses whatever their arguments are.

Name -> number on (x86_64, aarch64); None where it does not exist.
"""

REFUSED: dict[str, tuple[int | None, int | None]] = {
  # other namespaces and file trees
  "unshare": (272, 97),
  "setns": (308, 268),
  "mount": (165, 40),
  "umount2": (166, 39),
  "pivot_root": (155, 41),
  "chroot": (161, 51),
  "open_tree": (428, 428),
  "move_mount": (429, 429),
  "fsopen": (430, 430),
  "fsconfig": (431, 431),
  "fsmount": (432, 432),
  "fspick": (433, 433),
  "mount_setattr": (442, 442),
  "open_tree_attr": (467, 467),
  "name_to_handle_at": (303, 264),
  "open_by_handle_at": (304, 265),
  "swapon": (167, 224),
  "swapoff": (168, 225),
  "quotactl": (179, 60),
  "quotactl_fd": (443, 443),
  # other processes
  "ptrace": (101, 117),
  "process_vm_readv": (310, 270),
  "process_vm_writev": (311, 271),
  "process_madvise": (440, 440),
  "pidfd_getfd": (438, 438),
  "kcmp": (312, 272),
  "migrate_pages": (256, 238),
  "move_pages": (279, 239),
  "process_mrelease": (448, 448),
  # large or rarely audited parts of the kernel
  "bpf": (321, 280),
  "perf_event_open": (298, 241),
  "userfaultfd": (323, 282),
  "io_uring_setup": (425, 425),
  "io_uring_enter": (426, 426),
  "io_uring_register": (427, 427),
  "add_key": (248, 217),
  "request_key": (249, 218),
  "keyctl": (250, 219),
  "fanotify_init": (300, 262),
  "lookup_dcookie": (212, 18),
  "syslog": (103, 116),
  "modify_ldt": (154, None),
  "uselib": (134, None),
  "seccomp": (317, 277),  # compiled filters come out of a store that all of the machine shares
  "landlock_create_ruleset": (444, 444),
  "vhangup": (153, 58),
  "acct": (163, 89),
  # memory that belongs to no process
  "memfd_create": (319, 279),
  "memfd_secret": (447, 447),
  "shmget": (29, 194),
  "semget": (64, 190),
  "msgget": (68, 186),
  "mq_open": (240, 180),
  # pages of files that pipes and sockets hold on to after the file has lost them
  "splice": (275, 76),
  "tee": (276, 77),
  "vmsplice": (278, 75),
  # what the kernel counts for a user, or for the whole machine
  "inotify_init": (253, None),
  "inotify_init1": (294, 26),
  "io_setup": (206, 0),
  # the machine
  "kexec_load": (246, 104),
  "kexec_file_load": (320, 294),
  "init_module": (175, 105),
  "finit_module": (313, 273),
  "delete_module": (176, 106),
  "reboot": (169, 142),
  "iopl": (172, None),
  "ioperm": (173, None),
  "settimeofday": (164, 170),
  "clock_settime": (227, 112),
  "clock_adjtime": (305, 266),
  "adjtimex": (159, 171),
  "sethostname": (170, 161),
  "setdomainname": (171, 162),
}

WITHOUT_ATTRIBUTES = {
  "setxattr": (188, 5),
  "lsetxattr": (189, 6),
  "fsetxattr": (190, 7),
  "setxattrat": (463, 463),
}
"""Answered as by a file system that has no attributes: tmpfs does not count access lists as space,
and a snapshot does not keep them."""

WITHOUT_EFFECT = {"sync": (162, 81), "syncfs": (306, 267)}
"""Answered as if done: a sandbox has nothing to write back, and the machine's disks are waited for
by others."""
