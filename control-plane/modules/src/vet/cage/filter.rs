//! The system calls that the child may use from now on.

use std::{collections::BTreeMap, io};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen as Length, SeccompCmpOp as Compare,
    SeccompCondition as Condition, SeccompFilter, SeccompRule as Rule,
};

/// Calls that are allowed whatever their arguments are: memory, threads, signals to handle,
/// time, and the end. None of them takes a path or makes a descriptor.
const ALLOWED: &[i64] = &[
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getppid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_close,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// Installs the filter for all threads of the process.
pub(super) fn install() -> io::Result<()> {
    let program = program().map_err(io::Error::other)?;
    seccompiler::apply_filter_all_threads(&program).map_err(io::Error::other)
}

/// Any other call fails with `ENOSYS`, as on a kernel that does not have it: libraries have
/// a way to do without (`clone3`, `memfd_create`), while `EPERM` makes them give up.
fn program() -> Result<BpfProgram, seccompiler::BackendError> {
    let filter = SeccompFilter::new(
        rules()?,
        SeccompAction::Errno(libc::ENOSYS as u32),
        SeccompAction::Allow,
        std::env::consts::ARCH.try_into()?,
    )?;
    filter.try_into()
}

fn rules() -> Result<BTreeMap<i64, Vec<Rule>>, seccompiler::BackendError> {
    let mut rules: BTreeMap<i64, Vec<Rule>> =
        ALLOWED.iter().map(|call| (*call, Vec::new())).collect();
    // A descriptor that was inherited by mistake is of no use.
    rules.insert(libc::SYS_read, vec![equal(0, 0)?]);
    let output = || Ok(vec![equal(0, 1)?, equal(0, 2)?]);
    rules.insert(libc::SYS_write, output()?);
    rules.insert(libc::SYS_writev, output()?);
    // Anonymous memory only. The descriptor is -1 then.
    rules.insert(libc::SYS_mmap, vec![equal(4, u32::MAX.into())?]);
    // Threads, but no processes. `clone3` has its flags in memory, where a filter cannot
    // look; without it libraries use `clone`.
    let thread = libc::CLONE_THREAD as u64;
    let is_thread = Condition::new(0, Length::Qword, Compare::MaskedEq(thread), thread)?;
    rules.insert(libc::SYS_clone, vec![Rule::new(vec![is_thread])?]);
    // `abort` sends a signal to its own thread.
    let own = std::process::id().into();
    rules.insert(libc::SYS_tgkill, vec![equal(0, own)?]);
    // Names of threads and of memory regions, for whoever debugs.
    let (thread, region) = (libc::PR_SET_NAME as u64, libc::PR_SET_VMA as u64);
    rules.insert(libc::SYS_prctl, vec![equal(0, thread)?, equal(0, region)?]);
    // Limits may be read but not set: the third argument is the new one.
    let reads = Condition::new(2, Length::Qword, Compare::Eq, 0)?;
    rules.insert(libc::SYS_prlimit64, vec![Rule::new(vec![reads])?]);
    Ok(rules)
}

/// Matches if the lower half of an argument has this value: descriptors, process ids and
/// options are `int`.
fn equal(argument: u8, value: u64) -> Result<Rule, seccompiler::BackendError> {
    let condition = Condition::new(argument, Length::Dword, Compare::Eq, value)?;
    Rule::new(vec![condition])
}
