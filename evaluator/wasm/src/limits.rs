//! What one call of a guest may use.

use std::time::Duration;

/// The limits that a policy server sets; the others are fixed below.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From the start of instantiation to the answer.
    pub timeout: Duration,
    /// Linear memory of one instance.
    pub memory_bytes: u64,
}

/// Largest module that is looked at: real policies are 0.1 to 10 MB, and compiling costs about 1.5 s per MB.
pub const MAX_MODULE_BYTES: usize = 64 << 20;

/// A review is at most 7 MiB and an answer holds one object of it: 16 MiB leaves room for escapes.
pub(crate) const OUTPUT_BYTES: usize = 16 << 20;

/// A policy that looks at every container of a large pod makes some hundred calls.
pub(crate) const HOST_CALLS: u32 = 1_000;

/// Payloads and replies of all host calls of one evaluation, log lines included.
pub(crate) const HOST_CALL_BYTES: usize = 16 << 20;

/// Go and C++ modules have some thousand function pointers.
pub(crate) const TABLE_ELEMENTS: usize = 100_000;

/// Half of the 2 MiB that Rust threads have, so that host functions called from the deepest guest frame fit.
pub(crate) const STACK_BYTES: usize = 1 << 20;

/// What a sandbox takes besides memory and tables of the guest: its instance, its store, its stack.
pub(crate) const SANDBOX_BYTES: u64 = 256 << 10;

/// A page of WebAssembly, in which memories are counted.
pub(crate) const PAGE_BYTES: u64 = 64 << 10;

/// What `serde_json` and the API server accept without trouble.
pub(crate) const JSON_DEPTH: usize = 128;

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(2),
            memory_bytes: 128 << 20,
        }
    }
}
