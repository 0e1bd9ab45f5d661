//! The three streams.

use wasmtime::{Caller, Linker};

use super::imports::{BADF, SPIPE, SUCCESS, write_u32};
use crate::{
    host,
    limits::OUTPUT_BYTES,
    sandbox::{Guest, Stop, memory, slice, slice_mut, write},
};

const STDIN: i32 = 0;
const STDOUT: i32 = 1;
const STDERR: i32 = 2;

/// A line longer than this is logged in pieces.
const LINE_BYTES: usize = 8 << 10;

/// Rights of a stream: to read (bit 1) or to write (bit 6), and to be polled (bit 27).
const READ: u64 = 1 << 1 | 1 << 27;
const WRITE: u64 = 1 << 6 | 1 << 27;

pub(super) fn link(linker: &mut Linker<Guest>, module: &str) -> wasmtime::Result<()> {
    linker.func_wrap(module, "fd_read", fd_read)?;
    linker.func_wrap(module, "fd_write", fd_write)?;
    linker.func_wrap(module, "fd_close", |fd: i32| known(fd, SUCCESS))?;
    linker.func_wrap(module, "fd_fdstat_set_flags", |fd: i32, _: i32| {
        known(fd, SUCCESS)
    })?;
    linker.func_wrap(module, "fd_seek", |fd: i32, _: i64, _: i32, _: i32| {
        known(fd, SPIPE)
    })?;
    linker.func_wrap(module, "fd_tell", |fd: i32, _: i32| known(fd, SPIPE))?;
    linker.func_wrap(
        module,
        "fd_fdstat_get",
        |mut caller: Caller<'_, Guest>, fd: i32, at: i32| {
            let mut stat = [0; 24];
            let rights = if fd == STDIN { READ } else { WRITE };
            stat[8..16].copy_from_slice(&rights.to_le_bytes());
            describe(&mut caller, fd, at, &stat, "fd_fdstat_get")
        },
    )?;
    linker.func_wrap(
        module,
        "fd_filestat_get",
        |mut caller: Caller<'_, Guest>, fd: i32, at: i32| {
            describe(&mut caller, fd, at, &[0; 64], "fd_filestat_get")
        },
    )?;
    Ok(())
}

/// Streams are of unknown type: neither files nor terminals.
fn describe(
    caller: &mut Caller<'_, Guest>,
    fd: i32,
    at: i32,
    stat: &[u8],
    name: &'static str,
) -> wasmtime::Result<i32> {
    let (memory, _) = memory(caller, name)?;
    if !is_stream(fd) {
        return Ok(BADF);
    }
    write(memory, at, stat, name)?;
    Ok(SUCCESS)
}

fn fd_read(
    mut caller: Caller<'_, Guest>,
    fd: i32,
    list: i32,
    count: i32,
    read: i32,
) -> wasmtime::Result<i32> {
    const NAME: &str = "fd_read";
    let (memory, guest) = memory(&mut caller, NAME)?;
    if fd != STDIN {
        return Ok(BADF);
    }
    let io = &mut guest.wasi;
    let mut total = 0;
    for index in 0..count.cast_unsigned() {
        let (at, length) = buffer(memory, list, index, NAME)?;
        let rest = io.stdin.get(io.read..).unwrap_or_default();
        let piece = rest.get(..length.cast_unsigned() as usize).unwrap_or(rest);
        if piece.is_empty() && length != 0 {
            break;
        }
        // The whole buffer must be within the guest's memory, even if less is read.
        slice_mut(memory, at, length.cast_unsigned() as usize, NAME)?[..piece.len()]
            .copy_from_slice(piece);
        io.read += piece.len();
        total += piece.len();
    }
    write_u32(memory, read, total, NAME)?;
    Ok(SUCCESS)
}

fn fd_write(
    mut caller: Caller<'_, Guest>,
    fd: i32,
    list: i32,
    count: i32,
    written: i32,
) -> wasmtime::Result<i32> {
    const NAME: &str = "fd_write";
    let (memory, guest) = memory(&mut caller, NAME)?;
    if fd != STDOUT && fd != STDERR {
        return Ok(BADF);
    }
    let mut total = 0;
    for index in 0..count.cast_unsigned() {
        let (at, length) = buffer(memory, list, index, NAME)?;
        let piece = slice(memory, at, length, NAME)?;
        guest.print(fd, piece)?;
        total += piece.len();
    }
    write_u32(memory, written, total, NAME)?;
    Ok(SUCCESS)
}

/// Address and length of one buffer of a list.
fn buffer(memory: &[u8], list: i32, index: u32, name: &'static str) -> Result<(i32, i32), Stop> {
    let at = u64::from(list.cast_unsigned()) + u64::from(index) * 8;
    let at = usize::try_from(at).map_err(|_| Stop::BadAddress(name))?;
    let entry = memory
        .get(at..at.saturating_add(8))
        .ok_or(Stop::BadAddress(name))?;
    let int = |from: usize| {
        i32::from_le_bytes([
            entry[from],
            entry[from + 1],
            entry[from + 2],
            entry[from + 3],
        ])
    };
    Ok((int(0), int(4)))
}

fn is_stream(fd: i32) -> bool {
    (STDIN..=STDERR).contains(&fd)
}

fn known(fd: i32, errno: i32) -> i32 {
    if is_stream(fd) { errno } else { BADF }
}

// === impl Guest ===

impl Guest {
    fn print(&mut self, fd: i32, piece: &[u8]) -> Result<(), Stop> {
        if fd == STDOUT
            && let Some(stdout) = &mut self.wasi.stdout
        {
            if stdout.len() + piece.len() > OUTPUT_BYTES {
                return Err(Stop::OutputTooLarge);
            }
            self.meter.hold(piece.len() as u64)?;
            stdout.extend_from_slice(piece);
            return Ok(());
        }
        self.meter.charge_bytes(piece.len())?;
        self.log(piece)
    }

    /// Logs by line, whatever the pieces: runtimes write one message in many.
    fn log(&mut self, piece: &[u8]) -> Result<(), Stop> {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            self.wasi.line.extend_from_slice(part);
            if part.ends_with(b"\n") || self.wasi.line.len() >= LINE_BYTES {
                self.meter.charge_call(0)?;
                let line = std::mem::take(&mut self.wasi.line);
                host::log_line(self, &String::from_utf8_lossy(&line));
            }
        }
        Ok(())
    }
}
