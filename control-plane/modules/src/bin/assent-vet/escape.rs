//! Tries everything that a confined process must not be able to do, and prints one line for
//! each attempt: its name, and `ok` or the error.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::{TcpListener, TcpStream, UdpSocket},
    os::unix::{net::UnixStream, process::CommandExt as _},
    process::{Command, ExitCode},
    time::Duration,
};

/// Confines the process, then tries.
pub(super) fn main(secret: &str) -> ExitCode {
    let parent = rustix::process::getppid();
    match assent_modules::vet::confine() {
        Ok(confinement) => print("confinement", Ok(confinement)),
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            return ExitCode::FAILURE;
        }
    }
    print("read file", fs::read(secret).map(|b| b.len()));
    print("write file", fs::write(format!("{secret}.new"), "x"));
    print("remove file", fs::remove_file(secret));
    print("list directory", fs::read_dir("/").map(|_| ()));
    print(
        "read environment",
        fs::read("/proc/self/environ").map(|b| b.len()),
    );
    print("open device", File::open("/dev/null").map(|_| ()));
    print("tcp listen", TcpListener::bind("127.0.0.1:0").map(|_| ()));
    let address = ([127, 0, 0, 1], 9).into();
    let connected = TcpStream::connect_timeout(&address, Duration::from_secs(1));
    // A refused connection is one that was tried.
    print("tcp connect", tried(connected.map(|_| ())));
    print("udp", UdpSocket::bind("127.0.0.1:0").map(|_| ()));
    print("unix", UnixStream::pair().map(|_| ()));
    print(
        "start process",
        tried(Command::new("/nonexistent").spawn().map(|_| ())),
    );
    print("exec", tried(Err(Command::new("/nonexistent").exec())));
    if let Some(parent) = parent {
        print(
            "signal parent",
            rustix::process::test_kill_process(parent).map_err(Into::into),
        );
    }
    print(
        "write input",
        rustix::io::write(io::stdin(), b"x").map_err(Into::into),
    );
    for (name, number) in CALLS {
        print(name, call(*number));
    }
    // What a child must still be able to do.
    let thread = std::thread::Builder::new().spawn(|| vec![1u8; 64 << 20].len());
    let thread = thread.map(|handle| handle.join().is_ok());
    print("use a thread", thread);
    ExitCode::SUCCESS
}

/// Other calls that reach beyond the process.
const CALLS: &[(&str, libc::c_long)] = &[
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("io_uring_setup", libc::SYS_io_uring_setup),
    ("bpf", libc::SYS_bpf),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("mount", libc::SYS_mount),
    ("unshare", libc::SYS_unshare),
    ("setns", libc::SYS_setns),
    ("chroot", libc::SYS_chroot),
    ("keyctl", libc::SYS_keyctl),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("memfd_create", libc::SYS_memfd_create),
    ("openat2", libc::SYS_openat2),
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    ("execveat", libc::SYS_execveat),
    ("clone3", libc::SYS_clone3),
    ("setuid", libc::SYS_setuid),
    ("kill", libc::SYS_kill),
    ("fcntl", libc::SYS_fcntl),
    ("ioctl", libc::SYS_ioctl),
];

/// Only whether the kernel takes the call at all: its arguments are zero.
#[allow(unsafe_code)]
fn call(number: libc::c_long) -> io::Result<libc::c_long> {
    // SAFETY: with zeros none of these calls touches memory of this process.
    match unsafe { libc::syscall(number, 0, 0, 0, 0, 0, 0) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

/// An attempt that failed for a reason other than a refusal by the cage succeeded.
fn tried(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            Ok(())
        }
        other => other,
    }
}

fn print<T: std::fmt::Debug>(name: &str, result: io::Result<T>) {
    let mut out = io::stdout().lock();
    let _ = match result {
        Ok(value) => writeln!(out, "{name}: ok {value:?}"),
        Err(error) => writeln!(out, "{name}: {error}"),
    };
}
