//! Reads arbitrary bytes as calls of Envoy.

use bytes::Bytes;

use super::{check, grpc, path::Target, table::RequestTable, table::Workloads};

/// Reads the bytes as a call, and makes its document; whether it was one.
pub(crate) fn check(bytes: &[u8]) -> bool {
    let Ok(request) = grpc::decode(Bytes::copy_from_slice(bytes)) else {
        return false;
    };
    let Some(call) = check::Call::new(request) else {
        return false;
    };
    let http = call.http();
    let headers = call.raw_headers().unwrap_or_default();
    let table = RequestTable::default();
    let selected = table.select(http, &headers, &Workloads::All);
    assert_eq!(
        selected.is_ok(),
        Target::split(&http.path).segments().is_ok(),
        "a path that can be matched must have segments"
    );
    call.document()
}
