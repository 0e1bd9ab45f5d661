//! Which requests a policy decides about, in both directions.

use assent_core::policy::{HeaderMatch, RequestMatch, RequestScope};
use assent_proto::v1;

pub(crate) fn to_proto(scope: &RequestScope) -> v1::RequestScope {
    let entry = |entry: &RequestMatch| v1::RequestMatch {
        hosts: entry.hosts.clone(),
        paths: entry.paths.clone(),
        path_prefixes: entry.path_prefixes.clone(),
        methods: entry.methods.clone(),
        headers: entry.headers.iter().map(header).collect(),
    };
    v1::RequestScope {
        r#match: scope.matches.iter().map(entry).collect(),
        order: scope.order,
        reads_body: scope.reads_body,
    }
}

fn header(header: &HeaderMatch) -> v1::HeaderMatch {
    v1::HeaderMatch {
        name: header.name.clone(),
        exact: header.exact.clone(),
    }
}

pub(crate) fn from_proto(scope: v1::RequestScope) -> RequestScope {
    let entry = |entry: v1::RequestMatch| RequestMatch {
        hosts: entry.hosts,
        paths: entry.paths,
        path_prefixes: entry.path_prefixes,
        methods: entry.methods,
        headers: entry.headers.into_iter().map(read_header).collect(),
    };
    RequestScope {
        matches: scope.r#match.into_iter().map(entry).collect(),
        order: scope.order,
        reads_body: scope.reads_body,
    }
}

fn read_header(header: v1::HeaderMatch) -> HeaderMatch {
    HeaderMatch {
        name: header.name,
        exact: header.exact,
    }
}
