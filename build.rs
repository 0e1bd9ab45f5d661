//! Compiles `proto/**` in pure Rust: nobody has to install protoc.

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message as _;

const FILES: [&str; 7] = [
    "assent/discovery/v1/certificate.proto",
    "assent/discovery/v1/client_status.proto",
    "assent/discovery/v1/context.proto",
    "assent/discovery/v1/discovery.proto",
    "assent/discovery/v1/module.proto",
    "assent/discovery/v1/policy.proto",
    "assent/discovery/v1/rollout.proto",
];

/// What tools of xDS read on the discovery port.
const CLIENT_STATUS: &str = "envoy/service/status/v3/csds.proto";

/// What evaluators speak with Envoy; not part of the discovery port's reflection.
const AUTHORIZATION: &str = "envoy/service/auth/v3/external_auth.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(FILES, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let reflected = protox::compile(FILES.into_iter().chain([CLIENT_STATUS]), ["proto"])?;
    fs::write(out.join("descriptors.bin"), reflected.encode_to_vec())?;
    tonic_prost_build::configure()
        .bytes(".assent.discovery.v1.Policy.settings_json")
        .bytes(".assent.discovery.v1.ModuleChunk.data")
        .bytes(".assent.discovery.v1.CollectionHeld")
        .bytes(".assent.discovery.v1.CollectionMark.root")
        .bytes(".assent.discovery.v1.ObjectAnswer.object")
        .bytes(".assent.discovery.v1.ObjectChange.object")
        .compile_fds(descriptors)?;
    tonic_prost_build::configure()
        .extern_path(".google.rpc", "crate::google::rpc")
        .bytes(".envoy.service.auth.v3.AttributeContext.HttpRequest.raw_body")
        // The order of a document's fields does not change between equal requests.
        .btree_map(".envoy")
        .compile_fds(protox::compile([AUTHORIZATION, CLIENT_STATUS], ["proto"])?)?;
    Ok(())
}
