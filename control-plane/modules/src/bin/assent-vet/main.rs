//! The vetting child on its own, for tests of this crate.

use std::process::ExitCode;

mod escape;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["--report"] => assent_modules::vet::report_main(),
        ["escape", secret] => escape::main(secret),
        _ => assent_modules::vet::child_main(),
    }
}
