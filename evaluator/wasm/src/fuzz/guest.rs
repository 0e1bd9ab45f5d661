//! Guests made of bytes: a module whose calls, arguments, answers and memory the bytes decide.
//!
//! The module itself is always sound, so that every input reaches the host's functions.

use crate::Abi;

/// A module and how it is to be called.
pub(super) struct Guest {
    pub(super) abi: Abi,
    pub(super) wasm: Vec<u8>,
}

/// A host function: module, name, parameters (`I` has 64 bits) and whether it returns a number.
type Import = (&'static str, &'static str, &'static str, bool);

/// A function of the guest: name, number of parameters and whether it returns a number.
type Export = (&'static str, usize, bool);

/// What is left of the bytes; zeros when nothing is.
struct Input<'a>(&'a [u8]);

/// Calls that one guest makes; more would test nothing new.
const CALLS: u8 = 32;

/// Fits the first of the guest's two pages, and leaves one that is empty.
const DATA: usize = 60_000;

const WAPC: &[Import] = &[
    ("wapc", "__guest_request", "ii", false),
    ("wapc", "__guest_response", "ii", false),
    ("wapc", "__guest_error", "ii", false),
    ("wapc", "__console_log", "ii", false),
    ("wapc", "__host_call", "iiiiiiii", true),
    ("wapc", "__host_response_len", "", true),
    ("wapc", "__host_error_len", "", true),
    ("wapc", "__host_response", "i", false),
    ("wapc", "__host_error", "i", false),
];

const P1: &str = "wasi_snapshot_preview1";

const WASI: &[Import] = &[
    (P1, "fd_read", "iiii", true),
    (P1, "fd_write", "iiii", true),
    (P1, "fd_close", "i", true),
    (P1, "fd_seek", "iIii", true),
    (P1, "fd_fdstat_get", "ii", true),
    (P1, "fd_filestat_get", "ii", true),
    (P1, "args_sizes_get", "ii", true),
    (P1, "args_get", "ii", true),
    (P1, "environ_sizes_get", "ii", true),
    (P1, "environ_get", "ii", true),
    (P1, "clock_time_get", "iIi", true),
    (P1, "clock_res_get", "ii", true),
    (P1, "random_get", "ii", true),
    (P1, "poll_oneoff", "iiii", true),
    (P1, "path_open", "iiiiiIIii", true),
    (P1, "proc_exit", "i", false),
    ("host", "call", "iiiiiiii", true),
];

const REGO: &[Import] = &[
    ("env", "opa_abort", "i", false),
    ("env", "opa_println", "i", false),
    ("env", "opa_builtin0", "ii", true),
    ("env", "opa_builtin1", "iii", true),
    ("env", "opa_builtin2", "iiii", true),
    ("env", "opa_builtin3", "iiiii", true),
    ("env", "opa_builtin4", "iiiiii", true),
];

// The first function of each makes the calls.
const WAPC_EXPORTS: &[Export] = &[("__guest_call", 2, true)];
const WASI_EXPORTS: &[Export] = &[("_start", 0, false)];
const REGO_EXPORTS: &[Export] = &[
    ("opa_eval", 7, true),
    ("opa_heap_ptr_get", 0, true),
    ("opa_malloc", 1, true),
    ("opa_json_parse", 2, true),
    ("opa_json_dump", 1, true),
    ("builtins", 0, true),
    ("entrypoints", 0, true),
    ("opa_value_parse", 2, true),
    ("opa_value_dump", 1, true),
];

// === impl Guest ===

impl Guest {
    /// In their order the bytes give: the ABI, the calls with their arguments, what the
    /// exported functions return, and the memory from address 0 on.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut input = Input(bytes);
        let abi = Abi::ALL[usize::from(input.byte()) % Abi::ALL.len()];
        let (imports, exports) = match abi {
            Abi::Wapc => (WAPC, WAPC_EXPORTS),
            Abi::Wasi => (WASI, WASI_EXPORTS),
            Abi::Opa | Abi::Gatekeeper => (REGO, REGO_EXPORTS),
        };
        let calls = input.calls(imports);
        let bodies = exports.iter().enumerate().map(|(n, (_, _, returns))| {
            let mut body = if n == 0 { calls.clone() } else { vec![0] };
            if *returns {
                body.push(0x41);
                body.extend(sleb(input.number().into()));
            }
            body.push(0x0b);
            sized(body)
        });
        let bodies = list(bodies.collect());
        let data = &input.0[..input.0.len().min(DATA)];
        let mut wasm = b"\0asm\x01\0\0\0".to_vec();
        section(&mut wasm, 1, types(imports, exports));
        section(&mut wasm, 2, import_list(imports));
        let first = imports.len();
        let functions = (first..first + exports.len()).map(leb);
        section(&mut wasm, 3, list(functions.collect()));
        section(&mut wasm, 5, vec![1, 0, 2]);
        section(&mut wasm, 7, export_list(first, exports));
        section(&mut wasm, 10, bodies);
        let segment = [&[1, 0, 0x41, 0, 0x0b], leb(data.len()).as_slice(), data].concat();
        section(&mut wasm, 11, segment);
        Self { abi, wasm }
    }
}

// === impl Input ===

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn number(&mut self) -> i32 {
        i32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A function's body without its result and end.
    fn calls(&mut self, imports: &[Import]) -> Vec<u8> {
        // No local variables.
        let mut body = vec![0];
        for _ in 0..self.byte() % (CALLS + 1) {
            let index = usize::from(self.byte()) % imports.len();
            let (_, _, params, returns) = imports[index];
            for kind in params.chars() {
                body.push(if kind == 'I' { 0x42 } else { 0x41 });
                body.extend(sleb(self.number().into()));
            }
            body.push(0x10);
            body.extend(leb(index));
            if returns {
                body.push(0x1a);
            }
        }
        body
    }
}

fn types(imports: &[Import], exports: &[Export]) -> Vec<u8> {
    let signature = |params: Vec<u8>, returns: bool| {
        let mut entry = vec![0x60];
        entry.extend(sized(params));
        entry.extend(if returns { vec![1, 0x7f] } else { vec![0] });
        entry
    };
    let imported = imports.iter().map(|(_, _, params, returns)| {
        let params = params.bytes();
        let params = params.map(|kind| if kind == b'I' { 0x7e } else { 0x7f });
        signature(params.collect(), *returns)
    });
    let exported = exports
        .iter()
        .map(|(_, params, returns)| signature(vec![0x7f; *params], *returns));
    list(imported.chain(exported).collect())
}

fn import_list(imports: &[Import]) -> Vec<u8> {
    let entry = |(n, (module, name, _, _)): (usize, &Import)| {
        let mut entry = sized(module.as_bytes().to_vec());
        entry.extend(sized(name.as_bytes().to_vec()));
        entry.push(0);
        entry.extend(leb(n));
        entry
    };
    list(imports.iter().enumerate().map(entry).collect())
}

fn export_list(first: usize, exports: &[Export]) -> Vec<u8> {
    let entry = |name: &str, kind: u8, index: usize| {
        let mut entry = sized(name.as_bytes().to_vec());
        entry.push(kind);
        entry.extend(leb(index));
        entry
    };
    let functions = exports.iter().enumerate();
    let mut entries: Vec<_> = functions
        .map(|(n, (name, _, _))| entry(name, 0, first + n))
        .collect();
    entries.push(entry("memory", 2, 0));
    list(entries)
}

fn section(wasm: &mut Vec<u8>, id: u8, content: Vec<u8>) {
    wasm.push(id);
    wasm.extend(sized(content));
}

fn list(entries: Vec<Vec<u8>>) -> Vec<u8> {
    let mut list = leb(entries.len());
    list.extend(entries.concat());
    list
}

fn sized(content: Vec<u8>) -> Vec<u8> {
    let mut sized = leb(content.len());
    sized.extend(content);
    sized
}

fn leb(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        if value == 0 {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

fn sleb(mut value: i64) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        let low = value.to_le_bytes()[0] & 0x7f;
        value >>= 7;
        let negative = low & 0x40 != 0;
        if (value == 0 && !negative) || (value == -1 && negative) {
            bytes.push(low);
            return bytes;
        }
        bytes.push(low | 0x80);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn any_bytes_make_a_valid_module() {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        for round in 0..200_usize {
            let bytes: Vec<u8> = (0..round * 7)
                .map(|_| {
                    seed ^= seed << 13;
                    seed ^= seed >> 7;
                    seed ^= seed << 17;
                    seed.to_le_bytes()[3]
                })
                .collect();
            let guest = Guest::of(&bytes);
            let inspection = crate::inspect(&guest.wasm).unwrap();
            assert_eq!(inspection.problem, None, "{bytes:?}");
        }
    }

    #[test]
    fn numbers_keep_their_sign() {
        assert_eq!(sleb(0), [0]);
        assert_eq!(sleb(-1), [0x7f]);
        assert_eq!(sleb(64), [0xc0, 0]);
        assert_eq!(sleb(i32::MIN.into()), [0x80, 0x80, 0x80, 0x80, 0x78]);
    }
}
