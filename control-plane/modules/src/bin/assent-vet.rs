//! The vetting child on its own, for tests of this crate.

fn main() -> std::process::ExitCode {
    assent_modules::vet::child_main()
}
