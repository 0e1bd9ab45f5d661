//! The waPC ABI, guest's side.

use crate::{Language, Slot, operate};

#[cfg(target_arch = "wasm32")]
mod host {
    #[link(wasm_import_module = "wapc")]
    unsafe extern "C" {
        pub(super) fn __guest_request(operation: *mut u8, payload: *mut u8);
        pub(super) fn __guest_response(at: *const u8, length: usize);
        pub(super) fn __guest_error(at: *const u8, length: usize);
    }
}

/// The same names for tests on other targets, which never call them.
#[cfg(not(target_arch = "wasm32"))]
mod host {
    pub(super) unsafe fn __guest_request(_: *mut u8, _: *mut u8) {}
    pub(super) unsafe fn __guest_response(_: *const u8, _: usize) {}
    pub(super) unsafe fn __guest_error(_: *const u8, _: usize) {}
}

/// Answers one call of the host; 1 means answered, 0 failed.
pub fn respond<L: Language>(slot: &Slot<L>, operation: usize, payload: usize) -> i32 {
    let (operation, payload) = request(operation, payload);
    let operation = String::from_utf8_lossy(&operation);
    match operate(slot, &operation, &payload) {
        Ok(answer) => {
            // SAFETY: the host reads this many bytes, and keeps none of the addresses.
            unsafe { host::__guest_response(answer.as_ptr(), answer.len()) };
            1
        }
        Err(message) => {
            // SAFETY: as above.
            unsafe { host::__guest_error(message.as_ptr(), message.len()) };
            0
        }
    }
}

fn request(operation: usize, payload: usize) -> (Vec<u8>, Vec<u8>) {
    let (mut operation, mut payload) = (vec![0; operation], vec![0; payload]);
    // SAFETY: the host writes as many bytes as it said these two have.
    unsafe { host::__guest_request(operation.as_mut_ptr(), payload.as_mut_ptr()) };
    (operation, payload)
}
