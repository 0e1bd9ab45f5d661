//! The functions of preview 1 that have nothing to work on: no files, no directories, no sockets.

use wasmtime::{Engine, FuncType, Linker, Val, ValType};

use super::imports::{BADF, NOSYS};
use crate::sandbox::Guest;

/// Name and parameters, `i` for 32 and `I` for 64 bits; all return an error number.
const FUNCTIONS: [(&str, &str); 28] = [
    ("fd_advise", "iIIi"),
    ("fd_allocate", "iII"),
    ("fd_datasync", "i"),
    ("fd_fdstat_set_rights", "iII"),
    ("fd_filestat_set_size", "iI"),
    ("fd_filestat_set_times", "iIIi"),
    ("fd_pread", "iiiIi"),
    ("fd_prestat_dir_name", "iii"),
    ("fd_prestat_get", "ii"),
    ("fd_pwrite", "iiiIi"),
    ("fd_readdir", "iiiIi"),
    ("fd_renumber", "ii"),
    ("fd_sync", "i"),
    ("path_create_directory", "iii"),
    ("path_filestat_get", "iiiii"),
    ("path_filestat_set_times", "iiiiIIi"),
    ("path_link", "iiiiiii"),
    ("path_open", "iiiiiIIii"),
    ("path_readlink", "iiiiii"),
    ("path_remove_directory", "iii"),
    ("path_rename", "iiiiii"),
    ("path_symlink", "iiiii"),
    ("path_unlink_file", "iii"),
    ("proc_raise", "i"),
    ("sock_accept", "iii"),
    ("sock_recv", "iiiiii"),
    ("sock_send", "iiiii"),
    ("sock_shutdown", "ii"),
];

pub(super) fn link(linker: &mut Linker<Guest>, module: &str) -> wasmtime::Result<()> {
    let engine = linker.engine().clone();
    for (name, params) in FUNCTIONS {
        let errno = if name == "proc_raise" { NOSYS } else { BADF };
        linker.func_new(
            module,
            name,
            signature(&engine, params),
            move |_, _, results| {
                results[0] = Val::I32(errno);
                Ok(())
            },
        )?;
    }
    Ok(())
}

fn signature(engine: &Engine, params: &str) -> FuncType {
    let params = params.chars().map(|kind| {
        if kind == 'I' {
            ValType::I64
        } else {
            ValType::I32
        }
    });
    FuncType::new(engine, params, [ValType::I32])
}
