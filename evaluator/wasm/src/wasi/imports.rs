//! The functions of preview 1 that do something here.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use wasmtime::{Caller, Linker};

use super::{poll, refused, stdio};
use crate::{
    host,
    inspect::Import,
    sandbox::{Guest, Stop, memory, slice, slice_mut, write},
};

/// The module of preview 1 functions.
pub(crate) const MODULE: &str = "wasi_snapshot_preview1";

/// Command modules import their host call from one of these, depending on their SDK.
const HOST_CALL_MODULES: [&str; 2] = ["host", "kubewarden:javy/host"];
const HOST_CALL: &str = "call";

/// Error numbers of preview 1.
pub(super) const SUCCESS: i32 = 0;
pub(super) const BADF: i32 = 8;
pub(super) const INVAL: i32 = 28;
pub(super) const NOSYS: i32 = 52;
pub(super) const SPIPE: i32 = 70;

/// What a guest gets for randomness while it is built. Not zero, which some generators can't start with.
const FROZEN_RANDOM: u8 = 0x5a;

pub(super) const REALTIME: i32 = 0;
pub(super) const MONOTONIC: i32 = 1;

/// Defines all functions of preview 1.
pub(crate) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    link_args(linker)?;
    link_clocks(linker)?;
    linker.func_wrap(MODULE, "random_get", random_get)?;
    linker.func_wrap(MODULE, "poll_oneoff", poll::poll_oneoff)?;
    linker.func_wrap(MODULE, "sched_yield", || SUCCESS)?;
    linker.func_wrap(MODULE, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(Stop::Exit(code).into())
    })?;
    stdio::link(linker, MODULE)?;
    refused::link(linker, MODULE)
}

/// Defines the host calls of command modules.
pub(super) fn link_host_call(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    for module in HOST_CALL_MODULES {
        linker.func_wrap(module, HOST_CALL, host_call)?;
    }
    Ok(())
}

/// Whether an import is the host call of command modules.
pub(super) fn is_host_call(import: &Import) -> bool {
    import.name == HOST_CALL && HOST_CALL_MODULES.contains(&import.module.as_str())
}

fn link_args(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "args_sizes_get",
        |mut caller: Caller<'_, Guest>, count: i32, bytes: i32| {
            let args = caller.data().wasi.args;
            let length = args.iter().map(|arg| arg.len() + 1).sum();
            sizes(
                &mut caller,
                "args_sizes_get",
                (count, args.len()),
                (bytes, length),
            )
        },
    )?;
    linker.func_wrap(
        MODULE,
        "environ_sizes_get",
        |mut caller: Caller<'_, Guest>, count: i32, bytes: i32| {
            sizes(&mut caller, "environ_sizes_get", (count, 0), (bytes, 0))
        },
    )?;
    linker.func_wrap(MODULE, "environ_get", |_: i32, _: i32| SUCCESS)?;
    linker.func_wrap(
        MODULE,
        "args_get",
        |mut caller: Caller<'_, Guest>, mut list: i32, mut text: i32| {
            const NAME: &str = "args_get";
            let (memory, guest) = memory(&mut caller, NAME)?;
            for arg in guest.wasi.args {
                write(memory, list, &text.to_le_bytes(), NAME)?;
                write(memory, text, arg.as_bytes(), NAME)?;
                let end = text.wrapping_add_unsigned(u32::try_from(arg.len()).unwrap_or(0));
                write(memory, end, &[0], NAME)?;
                (list, text) = (list.wrapping_add(4), end.wrapping_add(1));
            }
            wasmtime::Result::Ok(SUCCESS)
        },
    )?;
    Ok(())
}

fn sizes(
    caller: &mut Caller<'_, Guest>,
    name: &'static str,
    (count_at, count): (i32, usize),
    (bytes_at, bytes): (i32, usize),
) -> wasmtime::Result<i32> {
    let (memory, _) = memory(caller, name)?;
    write_u32(memory, count_at, count, name)?;
    write_u32(memory, bytes_at, bytes, name)?;
    Ok(SUCCESS)
}

fn link_clocks(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "clock_time_get",
        |mut caller: Caller<'_, Guest>, id: i32, _precision: i64, at: i32| {
            let (memory, guest) = memory(&mut caller, "clock_time_get")?;
            if guest.frozen {
                let why = "it read the clock while it was built";
                return Err(Stop::Abort(why.to_owned()).into());
            }
            let Some(now) = now(id) else { return Ok(INVAL) };
            write(memory, at, &now.to_le_bytes(), "clock_time_get")?;
            wasmtime::Result::Ok(SUCCESS)
        },
    )?;
    linker.func_wrap(
        MODULE,
        "clock_res_get",
        |mut caller: Caller<'_, Guest>, id: i32, at: i32| {
            let (memory, _) = memory(&mut caller, "clock_res_get")?;
            if now(id).is_none() {
                return Ok(INVAL);
            }
            write(memory, at, &1_000_u64.to_le_bytes(), "clock_res_get")?;
            wasmtime::Result::Ok(SUCCESS)
        },
    )?;
    Ok(())
}

/// Nanoseconds on one of the two clocks that exist.
pub(super) fn now(id: i32) -> Option<u64> {
    /// The monotonic clock counts from the first look at it, not from a boot time that guests need not know.
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let time = match id {
        REALTIME => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
        MONOTONIC => START.get_or_init(Instant::now).elapsed(),
        _ => return None,
    };
    Some(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

/// Large requests are filled piece by piece, so that the deadline is seen.
fn random_get(mut caller: Caller<'_, Guest>, at: i32, length: i32) -> wasmtime::Result<i32> {
    const PIECE: usize = 64 << 10;
    let (memory, guest) = memory(&mut caller, "random_get")?;
    let buffer = slice_mut(memory, at, length.cast_unsigned() as usize, "random_get")?;
    for piece in buffer.chunks_mut(PIECE) {
        guest.meter.check_deadline()?;
        if guest.frozen {
            piece.fill(FROZEN_RANDOM);
            continue;
        }
        rand::fill(piece);
    }
    Ok(SUCCESS)
}

/// 0 = answered, 1 = refused; the response or the error is appended to stdin.
#[allow(clippy::too_many_arguments)]
fn host_call(
    mut caller: Caller<'_, Guest>,
    binding: i32,
    binding_length: i32,
    namespace: i32,
    namespace_length: i32,
    operation: i32,
    operation_length: i32,
    payload: i32,
    payload_length: i32,
) -> wasmtime::Result<i32> {
    let (memory, guest) = memory(&mut caller, "host.call")?;
    let read = |(at, length)| slice(memory, at, length, "host.call");
    let call = host::Call::read(
        [
            (binding, binding_length),
            (namespace, namespace_length),
            (operation, operation_length),
            (payload, payload_length),
        ],
        read,
    )?;
    let (refused, reply) = match host::call(guest, &call)? {
        Ok(response) => (0, response),
        Err(error) => (1, error.into_bytes()),
    };
    guest.wasi.stdin.extend_from_slice(&reply);
    Ok(refused)
}

pub(super) fn write_u32(
    memory: &mut [u8],
    at: i32,
    value: usize,
    name: &'static str,
) -> Result<(), Stop> {
    write(
        memory,
        at,
        &u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes(),
        name,
    )
}
