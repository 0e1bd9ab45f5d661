//! Flags that say what is not in an object.

use std::path::PathBuf;

use super::make::{Operation, RequestOptions};

/// How requests are made of objects that are passed with -f.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct RequestArgs {
    /// What is done to the object [default: UPDATE with --old-object, else CREATE]
    #[arg(
        long,
        value_name = "OPERATION",
        help_heading = "Requests made of objects"
    )]
    operation: Option<Operation>,

    /// Object as it was before an UPDATE; objects of several documents are matched by kind, namespace and name
    #[arg(
        long,
        value_name = "FILE|DIR",
        help_heading = "Requests made of objects"
    )]
    pub(crate) old_object: Option<PathBuf>,

    /// User who sends the request [default: assent-user]
    #[arg(long, value_name = "NAME", help_heading = "Requests made of objects")]
    user: Option<String>,

    /// Group of the user; repeat for more [default: system:authenticated]
    #[arg(
        long = "group",
        value_name = "NAME",
        help_heading = "Requests made of objects"
    )]
    groups: Vec<String>,

    /// Namespace of namespaced objects that name none [default: default]
    #[arg(
        short,
        long,
        value_name = "NAMESPACE",
        help_heading = "Requests made of objects"
    )]
    namespace: Option<String>,

    /// Resource, such as pods or pods/ephemeralcontainers [default: that of the kind; for custom kinds its usual plural]
    #[arg(
        long,
        value_name = "RESOURCE[/SUBRESOURCE]",
        help_heading = "Requests made of objects"
    )]
    resource: Option<String>,

    /// The request is a dry run
    #[arg(long, help_heading = "Requests made of objects")]
    dry_run: bool,
}

// === impl RequestArgs ===

impl RequestArgs {
    pub(crate) fn options(&self) -> RequestOptions {
        RequestOptions {
            operation: self.operation,
            user: self.user.clone(),
            groups: self.groups.clone(),
            namespace: self.namespace.clone(),
            resource: self.resource.clone(),
            dry_run: self.dry_run,
        }
    }
}
