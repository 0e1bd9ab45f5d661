//! Sleeping, which preview 1 does by polling clocks.

use std::{thread, time::Duration};

use wasmtime::Caller;

use super::imports::{INVAL, SUCCESS, now, write_u32};
use crate::sandbox::{Guest, Stop, memory, write};

const NAME: &str = "poll_oneoff";

/// Sizes of the guest's structures.
const SUBSCRIPTION: usize = 48;
const EVENT: usize = 32;

/// More than any runtime subscribes to at once.
const MAX_SUBSCRIPTIONS: u32 = 1024;

const CLOCK: u8 = 0;

/// A wait that does not delay other work on the same thread noticeably.
const NAP: Duration = Duration::from_millis(1);

/// One event that the guest waits for.
struct Subscription {
    userdata: [u8; 8],
    kind: u8,
    /// Nanoseconds from now for clocks; streams are always ready.
    wait: u64,
}

/// Waits for the first subscription; never beyond the deadline.
pub(super) fn poll_oneoff(
    mut caller: Caller<'_, Guest>,
    subscriptions: i32,
    events: i32,
    count: i32,
    ready: i32,
) -> wasmtime::Result<i32> {
    let (memory, guest) = memory(&mut caller, NAME)?;
    let count = count.cast_unsigned();
    if count == 0 || count > MAX_SUBSCRIPTIONS {
        return Ok(INVAL);
    }
    let list = read(memory, subscriptions, count)?;
    let wait = list
        .iter()
        .map(|subscription| subscription.wait)
        .min()
        .unwrap_or(0);
    sleep(guest, Duration::from_nanos(wait))?;
    let mut total = 0;
    for subscription in list.iter().filter(|subscription| subscription.wait <= wait) {
        let at = events.wrapping_add_unsigned(u32::try_from(total * EVENT).unwrap_or(u32::MAX));
        write(memory, at, &subscription.event(), NAME)?;
        total += 1;
    }
    write_u32(memory, ready, total, NAME)?;
    Ok(SUCCESS)
}

fn read(memory: &[u8], at: i32, count: u32) -> Result<Vec<Subscription>, Stop> {
    let start = at.cast_unsigned() as usize;
    let bytes = memory
        .get(start..start + count as usize * SUBSCRIPTION)
        .ok_or(Stop::BadAddress(NAME))?;
    Ok(bytes
        .chunks_exact(SUBSCRIPTION)
        .map(Subscription::read)
        .collect())
}

/// Sleeps no longer than the evaluation may take.
fn sleep(guest: &mut Guest, wait: Duration) -> Result<(), Stop> {
    let left = guest.meter.remaining();
    if wait > NAP {
        guest.meter.mark_slow();
    }
    thread::sleep(wait.min(left));
    if wait >= left {
        Err(Stop::Timeout)
    } else {
        Ok(())
    }
}

// === impl Subscription ===

impl Subscription {
    fn read(bytes: &[u8]) -> Self {
        let long = |at: usize| {
            let mut long = [0; 8];
            long.copy_from_slice(&bytes[at..at + 8]);
            long
        };
        let kind = bytes[8];
        let clock = i32::from_le_bytes([bytes[16], bytes[17], bytes[18], bytes[19]]);
        let timeout = u64::from_le_bytes(long(24));
        let absolute = bytes[40] & 1 == 1;
        let elapsed = if absolute { now(clock).unwrap_or(0) } else { 0 };
        let wait = if kind == CLOCK {
            timeout.saturating_sub(elapsed)
        } else {
            0
        };
        Self {
            userdata: long(0),
            kind,
            wait,
        }
    }

    fn event(&self) -> [u8; EVENT] {
        let mut event = [0; EVENT];
        event[..8].copy_from_slice(&self.userdata);
        event[10] = self.kind;
        event
    }
}
