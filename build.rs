//! Compiles `proto/**` in pure Rust: nobody has to install protoc.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 6] = [
    "assent/discovery/v1/certificate.proto",
    "assent/discovery/v1/client_status.proto",
    "assent/discovery/v1/discovery.proto",
    "assent/discovery/v1/module.proto",
    "assent/discovery/v1/policy.proto",
    "assent/discovery/v1/rollout.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".assent.discovery.v1.Policy.settings_json")
        .bytes(".assent.discovery.v1.ModuleChunk.data")
        .compile_fds(descriptors)?;
    Ok(())
}
