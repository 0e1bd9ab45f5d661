//! How policies' questions about images reach registries.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Context as _;
use assent_oci::{AddressPolicy, Auth, Sources};

use crate::config::RegistryAccess;

/// Registries that policies may ask about images.
#[derive(Debug, clap::Args)]
pub(super) struct RegistryArgs {
    /// Registries that may speak plain HTTP or have any certificate, as host or host:port
    #[arg(
        long,
        env = "ASSENT_OCI_INSECURE",
        value_name = "HOST",
        value_delimiter = ','
    )]
    oci_insecure: Vec<String>,
    /// Certificate authorities of a registry, PEM
    #[arg(long, env = "ASSENT_OCI_CA", value_name = "HOST=FILE", value_delimiter = ',', value_parser = host_and_file)]
    oci_ca: Vec<(String, PathBuf)>,
    /// Logins of registries: a docker configuration
    #[arg(long, env = "ASSENT_OCI_AUTH", value_name = "FILE")]
    oci_auth: Option<PathBuf>,
    /// Ask registries at loopback and private addresses, too
    #[arg(long, env = "ASSENT_OCI_PRIVATE_ADDRESSES")]
    oci_private_addresses: bool,
}

// === impl RegistryArgs ===

impl RegistryArgs {
    /// Reads the files that are named.
    pub(super) fn read(self) -> anyhow::Result<RegistryAccess> {
        let Self {
            oci_insecure,
            oci_ca,
            oci_auth,
            oci_private_addresses,
        } = self;
        let read = |file: &PathBuf| {
            std::fs::read(file).with_context(|| format!("failed to read {}", file.display()))
        };
        let mut certificates = BTreeMap::new();
        for (host, file) in oci_ca {
            certificates.insert(host, read(&file)?);
        }
        let auth = match &oci_auth {
            Some(file) => Auth::from_docker_config(&read(file)?)?,
            None => Auth::default(),
        };
        Ok(RegistryAccess {
            sources: Sources {
                insecure: oci_insecure,
                certificates,
                auth,
            },
            addresses: match oci_private_addresses {
                true => AddressPolicy::LOCAL,
                false => AddressPolicy::PUBLIC,
            },
        })
    }
}

fn host_and_file(text: &str) -> Result<(String, PathBuf), String> {
    let (host, file) = text.split_once('=').ok_or("write it as HOST=FILE")?;
    Ok((host.to_owned(), file.into()))
}
