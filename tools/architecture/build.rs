//! Hands the name of the platform on: Cargo tells it to build scripts only.

fn main() {
    let target = std::env::var("TARGET").unwrap_or_default();
    println!("cargo::rustc-env=ARCHITECTURE_TARGET={target}");
    println!("cargo::rerun-if-changed=build.rs");
}
