//! The functions that Rego modules import.

use wasmtime::{Caller, Linker};

use super::{
    builtins,
    deadline::{self, Interrupted, Limit},
    value,
};
use crate::{
    budget::parsed_bytes,
    host,
    inspect::Import,
    limits::OUTPUT_BYTES,
    log::error_text,
    sandbox::{Guest, Stop, memory, write},
};

pub(super) const MODULE: &str = "env";

/// Whether an import is one of OPA's.
pub(super) fn is_opa(import: &Import) -> bool {
    import.module == MODULE && import.name.starts_with("opa_")
}

/// Defines the functions.
pub(super) fn link(linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "opa_abort",
        |mut caller: Caller<'_, Guest>, at: i32| -> wasmtime::Result<()> {
            let (memory, _) = memory(&mut caller, "opa_abort")?;
            Err(Stop::Abort(error_text(text_at(memory, at, "opa_abort")?)).into())
        },
    )?;
    linker.func_wrap(
        MODULE,
        "opa_println",
        |mut caller: Caller<'_, Guest>, at: i32| {
            let (memory, guest) = memory(&mut caller, "opa_println")?;
            let line = lossy(text_at(memory, at, "opa_println")?);
            guest.meter.charge_call(line.len())?;
            host::log_line(guest, &line);
            wasmtime::Result::Ok(())
        },
    )?;
    linker.func_wrap(
        MODULE,
        "opa_builtin0",
        |mut caller: Caller<'_, Guest>, id: i32, _: i32| builtin(&mut caller, id, &[]),
    )?;
    linker.func_wrap(
        MODULE,
        "opa_builtin1",
        |mut caller: Caller<'_, Guest>, id: i32, _: i32, a: i32| builtin(&mut caller, id, &[a]),
    )?;
    linker.func_wrap(
        MODULE,
        "opa_builtin2",
        |mut caller: Caller<'_, Guest>, id: i32, _: i32, a: i32, b: i32| {
            builtin(&mut caller, id, &[a, b])
        },
    )?;
    linker.func_wrap(
        MODULE,
        "opa_builtin3",
        |mut caller: Caller<'_, Guest>, id: i32, _: i32, a: i32, b: i32, c: i32| {
            builtin(&mut caller, id, &[a, b, c])
        },
    )?;
    linker.func_wrap(
        MODULE,
        "opa_builtin4",
        |mut caller: Caller<'_, Guest>, id: i32, _: i32, a: i32, b: i32, c: i32, d: i32| {
            builtin(&mut caller, id, &[a, b, c, d])
        },
    )?;
    Ok(())
}

/// Calls a builtin of the host; address 0 is the undefined value.
fn builtin(caller: &mut Caller<'_, Guest>, id: i32, args: &[i32]) -> wasmtime::Result<i32> {
    caller.data().meter.check_deadline()?;
    let session = &caller.data().opa;
    let (table, now) = (session.builtins.clone(), session.now);
    let builtin = table.get(id).ok_or_else(|| {
        Stop::Abort(format!(
            "the module called a builtin {id} that it does not list"
        ))
    })?;
    let limit = caller.data().meter.builtin_limit();
    let mut values = Vec::with_capacity(args.len());
    let (mut argument_bytes, mut argument_memory) = (0, 0);
    for at in args {
        let argument = argument(caller, *at, limit)?;
        values.push(argument.value);
        argument_bytes += argument.bytes;
        argument_memory += argument.memory;
    }
    let context = builtins::Context {
        now,
        limit,
        argument_bytes,
        argument_memory,
        memory: caller.data().meter.budget().clone(),
    };
    let result = builtin.call(&context, &values)?;
    log_notes(caller.data_mut(), result.log)?;
    drop(values);
    caller.data_mut().meter.release(argument_memory);
    match result.value {
        Some(value) => {
            let text = interruptible(limit, || value::write(&value))?.map_err(|error| {
                Stop::Abort(format!("failed to write the result of a builtin: {error}"))
            })?;
            let bytes = text.len() as u64;
            caller.data_mut().meter.hold(bytes)?;
            let at = reply(caller, &text);
            caller.data_mut().meter.release(bytes);
            at
        }
        None => Ok(0),
    }
}

/// Runs host code that looks at the deadline.
fn interruptible<T>(limit: Limit, call: impl FnOnce() -> T) -> Result<T, Stop> {
    deadline::run(limit, call).map_err(|interrupted| match interrupted {
        Interrupted::Timeout => Stop::Timeout,
        Interrupted::OutOfMemory => Stop::Overloaded,
        Interrupted::Panicked => Stop::Abort("failed to pass a value to a builtin".to_owned()),
    })
}

fn log_notes(guest: &mut Guest, notes: Option<String>) -> Result<(), Stop> {
    let Some(notes) = notes else { return Ok(()) };
    guest.meter.charge_call(notes.len())?;
    host::log_line(guest, &notes);
    Ok(())
}

/// A value that was taken out of the guest.
struct Argument {
    value: regorus::Value,
    /// Length of its text.
    bytes: usize,
    /// What it takes at most on the host, which the evaluation holds.
    memory: u64,
}

/// Takes a value out of the guest, as text.
fn argument(caller: &mut Caller<'_, Guest>, at: i32, limit: Limit) -> wasmtime::Result<Argument> {
    let functions = functions(caller)?;
    let at = functions.dump.call(&mut *caller, at)?;
    let (memory, guest) = memory(caller, "opa_builtin")?;
    let text = text_at(memory, at, "opa_builtin")?;
    let memory = parsed_bytes(text);
    guest.meter.hold(memory)?;
    let value = interruptible(limit, || value::parse(text))?.map_err(|error| {
        Stop::Abort(format!("failed to read the argument of a builtin: {error}"))
    })?;
    Ok(Argument {
        value,
        bytes: text.len(),
        memory,
    })
}

/// Puts a value into the guest.
fn reply(caller: &mut Caller<'_, Guest>, text: &str) -> wasmtime::Result<i32> {
    let functions = functions(caller)?;
    let length = i32::try_from(text.len()).map_err(|_| Stop::OutputTooLarge)?;
    let at = functions.malloc.call(&mut *caller, length)?;
    let (memory, _) = memory(caller, "opa_malloc")?;
    write(memory, at, text.as_bytes(), "opa_malloc")?;
    functions.parse.call(&mut *caller, (at, length))
}

fn functions(caller: &Caller<'_, Guest>) -> Result<super::exports::Functions, Stop> {
    let functions = caller.data().opa.functions.clone();
    functions
        .ok_or_else(|| Stop::Abort("the module called a builtin before it was started".to_owned()))
}

/// The text at `at` up to its zero byte.
fn text_at<'a>(memory: &'a [u8], at: i32, name: &'static str) -> Result<&'a [u8], Stop> {
    let rest = memory
        .get(at.cast_unsigned() as usize..)
        .ok_or(Stop::BadAddress(name))?;
    let window = &rest[..rest.len().min(OUTPUT_BYTES + 1)];
    match memchr::memchr(0, window) {
        Some(end) => Ok(&window[..end]),
        None if window.len() > OUTPUT_BYTES => Err(Stop::OutputTooLarge),
        None => Err(Stop::BadAddress(name)),
    }
}

fn lossy(text: &[u8]) -> String {
    String::from_utf8_lossy(text).into_owned()
}
