"""System calls that Python needs inside the sandbox, and their numbers; whatever is not named here is refused.

Files, which are read-only there; memory, threads and time; pipes and what asyncio waits with; the process itself, whose
limits can't be raised; and the sandbox's own first steps, in which the interpreter is started and takes on a user.
"""

from __future__ import annotations

__all__ = ["NUMBERS"]

_X86_64 = """
read 0 write 1 open 2 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12
rt_sigaction 13 rt_sigprocmask 14 rt_sigreturn 15 ioctl 16 pread64 17 readv 19 writev 20 access 21 pipe 22 select 23
sched_yield 24 mremap 25 madvise 28 dup 32 dup2 33 pause 34 nanosleep 35 getitimer 36 alarm 37 setitimer 38 getpid 39
sendto 44 recvfrom 45 shutdown 48 getsockname 51 getpeername 52 socketpair 53 setsockopt 54 getsockopt 55 clone 56
execve 59 exit 60 wait4 61 kill 62 uname 63 fcntl 72 flock 73 getdents 78 getcwd 79 chdir 80 fchdir 81 readlink 89
umask 95 gettimeofday 96 getrlimit 97 getrusage 98 sysinfo 99 times 100 getuid 102 getgid 104 geteuid 107 getegid 108
getppid 110 getpgrp 111 getgroups 115 setgroups 116 setresuid 117 getresuid 118 setresgid 119 getresgid 120
getpgid 121 getsid 124 rt_sigpending 127 rt_sigtimedwait 128 rt_sigsuspend 130 sigaltstack 131 statfs 137 fstatfs 138
getpriority 140 setpriority 141 sched_getparam 143 sched_getscheduler 145 sched_get_priority_max 146
sched_get_priority_min 147 arch_prctl 158 setrlimit 160 gettid 186 tkill 200 time 201 futex 202 sched_getaffinity 204
epoll_create 213 getdents64 217 set_tid_address 218 restart_syscall 219 timer_create 222 timer_settime 223
timer_gettime 224 timer_getoverrun 225 timer_delete 226 clock_gettime 228 clock_getres 229 clock_nanosleep 230
exit_group 231 epoll_wait 232 epoll_ctl 233 tgkill 234 waitid 247 openat 257 newfstatat 262 readlinkat 267
faccessat 269 pselect6 270 ppoll 271 set_robust_list 273 get_robust_list 274 epoll_pwait 281 eventfd 284 eventfd2 290
epoll_create1 291 dup3 292 pipe2 293 prlimit64 302 getcpu 309 getrandom 318 membarrier 324 statx 332 rseq 334
clone3 435 close_range 436 faccessat2 439
"""
_AARCH64 = """
getcwd 17 eventfd2 19 epoll_create1 20 epoll_ctl 21 epoll_pwait 22 dup 23 dup3 24 fcntl 25 ioctl 29 flock 32 statfs 43
fstatfs 44 faccessat 48 chdir 49 fchdir 50 openat 56 close 57 pipe2 59 getdents64 61 lseek 62 read 63 write 64
readv 65 writev 66 pread64 67 pselect6 72 ppoll 73 readlinkat 78 newfstatat 79 fstat 80 exit 93 exit_group 94
waitid 95 set_tid_address 96 futex 98 set_robust_list 99 get_robust_list 100 nanosleep 101 getitimer 102 setitimer 103
timer_create 107 timer_gettime 108 timer_getoverrun 109 timer_settime 110 timer_delete 111 clock_gettime 113
clock_getres 114 clock_nanosleep 115 sched_getscheduler 120 sched_getparam 121 sched_getaffinity 123 sched_yield 124
sched_get_priority_max 125 sched_get_priority_min 126 restart_syscall 128 kill 129 tkill 130 tgkill 131
sigaltstack 132 rt_sigsuspend 133 rt_sigaction 134 rt_sigprocmask 135 rt_sigpending 136 rt_sigtimedwait 137
rt_sigreturn 139 setpriority 140 getpriority 141 setresuid 147 getresuid 148 setresgid 149 getresgid 150 times 153
getpgid 155 getsid 156 getgroups 158 setgroups 159 uname 160 getrlimit 163 setrlimit 164 getrusage 165 umask 166
getcpu 168 gettimeofday 169 getpid 172 getppid 173 getuid 174 geteuid 175 getgid 176 getegid 177 gettid 178
sysinfo 179 socketpair 199 getsockname 204 getpeername 205 sendto 206 recvfrom 207 setsockopt 208 getsockopt 209
shutdown 210 brk 214 munmap 215 mremap 216 clone 220 execve 221 mmap 222 mprotect 226 madvise 233 wait4 260
prlimit64 261 getrandom 278 membarrier 283 statx 291 rseq 293 clone3 435 close_range 436 faccessat2 439
"""


def _table(text: str) -> dict[str, int]:
    words = text.split()
    return {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}


NUMBERS = {"x86_64": _table(_X86_64), "aarch64": _table(_AARCH64)}
"""By machine, as `platform.machine()` calls it."""
