//! The nine functions that waPC guests import.

use wasmtime::{Caller, Linker};

use crate::{
    host,
    limits::OUTPUT_BYTES,
    log::error_text,
    sandbox::{Guest, Stop, memory, slice, write},
};

pub(super) const MODULE: &str = "wapc";

/// Defines the functions.
pub(super) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    link_guest(linker)?;
    link_host(linker)
}

fn link_guest(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "__guest_request",
        |mut caller: Caller<'_, Guest>, operation: i32, payload: i32| {
            const NAME: &str = "__guest_request";
            let (memory, guest) = memory(&mut caller, NAME)?;
            write(memory, operation, guest.wapc.operation.as_bytes(), NAME)?;
            write(memory, payload, &guest.wapc.payload, NAME)?;
            wasmtime::Result::Ok(())
        },
    )?;
    linker.func_wrap(
        MODULE,
        "__guest_response",
        |mut caller: Caller<'_, Guest>, at: i32, length: i32| {
            let (memory, guest) = memory(&mut caller, "__guest_response")?;
            let response = slice(memory, at, length, "__guest_response")?;
            if response.len() > OUTPUT_BYTES {
                return Err(Stop::OutputTooLarge.into());
            }
            // A second response replaces the first.
            let before = guest.wapc.response.take().map_or(0, |before| before.len());
            guest.meter.release(before as u64);
            guest.meter.hold(response.len() as u64)?;
            guest.wapc.response = Some(response.to_vec());
            wasmtime::Result::Ok(())
        },
    )?;
    linker.func_wrap(
        MODULE,
        "__guest_error",
        |mut caller: Caller<'_, Guest>, at: i32, length: i32| {
            let (memory, guest) = memory(&mut caller, "__guest_error")?;
            let error = slice(memory, at, length, "__guest_error")?;
            guest.wapc.error = Some(error_text(error));
            wasmtime::Result::Ok(())
        },
    )?;
    linker.func_wrap(
        MODULE,
        "__console_log",
        |mut caller: Caller<'_, Guest>, at: i32, length: i32| {
            let (memory, guest) = memory(&mut caller, "__console_log")?;
            let line = slice(memory, at, length, "__console_log")?;
            guest.meter.charge_call(line.len())?;
            host::log_line(guest, &text(line));
            wasmtime::Result::Ok(())
        },
    )?;
    Ok(())
}

fn link_host(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "__host_call", host_call)?;
    linker.func_wrap(
        MODULE,
        "__host_response_len",
        |caller: Caller<'_, Guest>| length(&caller.data().wapc.host_response),
    )?;
    linker.func_wrap(MODULE, "__host_error_len", |caller: Caller<'_, Guest>| {
        length(caller.data().wapc.host_error.as_bytes())
    })?;
    linker.func_wrap(
        MODULE,
        "__host_response",
        |mut caller: Caller<'_, Guest>, at: i32| {
            let (memory, guest) = memory(&mut caller, "__host_response")?;
            write(memory, at, &guest.wapc.host_response, "__host_response")?;
            wasmtime::Result::Ok(())
        },
    )?;
    linker.func_wrap(
        MODULE,
        "__host_error",
        |mut caller: Caller<'_, Guest>, at: i32| {
            let (memory, guest) = memory(&mut caller, "__host_error")?;
            write(memory, at, guest.wapc.host_error.as_bytes(), "__host_error")?;
            wasmtime::Result::Ok(())
        },
    )?;
    Ok(())
}

/// 1 = answered, 0 = refused; the guest fetches the response or the error by further calls.
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
    let (memory, guest) = memory(&mut caller, "__host_call")?;
    let read = |(at, length)| slice(memory, at, length, "__host_call");
    let call = host::Call::read(
        [
            (binding, binding_length),
            (namespace, namespace_length),
            (operation, operation_length),
            (payload, payload_length),
        ],
        read,
    )?;
    match host::call(guest, &call)? {
        Ok(response) => {
            guest.wapc.host_response = response;
            Ok(1)
        }
        Err(error) => {
            guest.wapc.host_error = error;
            Ok(0)
        }
    }
}

/// Replies are bounded by the budget, far below the sign bit.
fn length(bytes: &[u8]) -> i32 {
    i32::try_from(bytes.len()).unwrap_or(i32::MAX)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
