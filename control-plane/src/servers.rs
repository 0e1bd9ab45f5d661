//! The registries that a PolicyServer declares.

use assent_api::ParsedServer;
use assent_oci::Sources;

pub(crate) fn sources(server: Option<&ParsedServer>) -> Sources {
    let declared = server.and_then(|s| s.spec.sources.as_ref());
    let Some(declared) = declared else {
        return Sources::default();
    };
    let secure = declared.secure.iter();
    let certificates =
        secure.filter_map(|s| Some((s.name.clone(), s.certificate.clone()?.into_bytes())));
    Sources {
        insecure: declared.insecure.clone(),
        certificates: certificates.collect(),
        ..Sources::default()
    }
}
