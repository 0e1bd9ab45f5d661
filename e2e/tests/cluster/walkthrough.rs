//! The walk-through of the documentation, command by command.

use std::{fs, path::Path, process::Command, time::Duration};

use assent_e2e::{
    kube::Cluster,
    walkthrough::{Document, Shell, Step},
};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
const DOCUMENT: &str = "docs/walkthrough.md";

/// Writes the actual output into the document if it differs.
const BLESS: &str = "ASSENT_BLESS";

/// The longest that a command may take, which bounds a hang: images are built.
const PATIENCE: Duration = Duration::from_secs(300);

#[tokio::test]
async fn walkthrough_commands_print_what_the_page_shows() {
    let _turn = crate::turn().await;
    let cluster = Cluster::shared();
    let path = Path::new(ROOT).join(DOCUMENT);
    let text = fs::read_to_string(&path).expect("the document must be there");
    let document = Document::read(&text).unwrap_or_else(|why| panic!("{DOCUMENT}: {why}"));
    let dir = tempfile::tempdir().expect("temporary directory must be made");
    let mut shell = Shell::start(&mut bash(dir.path()));
    let mut seen = Vec::new();
    let bless = std::env::var_os(BLESS).is_some();
    for step in document.steps() {
        match perform(&mut shell, step, bless) {
            Ok(output) => seen.push(output),
            Err(why) => {
                dump(cluster).await;
                panic!("{DOCUMENT}:{}: $ {}\n{why}", step.line, step.command);
            }
        }
    }
    if bless {
        fs::write(path, document.with(&seen)).expect("the document must be written");
    }
}

/// Runs a command: what it wrote, if that is what is shown.
fn perform(shell: &mut Shell, step: &Step, bless: bool) -> Result<Vec<String>, String> {
    let outcome = shell.run(&step.command, PATIENCE)?;
    let (output, status) = (outcome.output, outcome.status);
    if (status != 0) != step.may_fail() {
        let output = output.join("\n");
        return Err(format!("its exit status is {status}; it wrote:\n{output}"));
    }
    match step.judge(&output) {
        Err(difference) if !bless => Err(format!(
            "shown (-) and seen (+); {BLESS}=1 writes what is seen into the document\n{difference}"
        )),
        _ => Ok(output),
    }
}

/// A shell in the clone that leaves no files elsewhere.
fn bash(dir: &Path) -> Command {
    let mut bash = Command::new("bash");
    bash.current_dir(ROOT)
        .env("TMPDIR", dir)
        // What kubectl and helm learned about one cluster is wrong for the next.
        .env("KUBECACHEDIR", dir.join("kubectl"))
        .env("KUBERC", "off")
        .env("HELM_CACHE_HOME", dir.join("helm/cache"))
        .env("HELM_CONFIG_HOME", dir.join("helm/config"))
        .env("HELM_DATA_HOME", dir.join("helm/data"))
        // Sources with a new time stamp would be built again.
        .env_remove("CI");
    for (name, _) in std::env::vars_os() {
        if is_of_this_run(&name.to_string_lossy()) {
            bash.env_remove(name);
        }
    }
    bash
}

/// Variables that cargo sets for a test, which must not affect builds in the document.
fn is_of_this_run(variable: &str) -> bool {
    let kept = ["CARGO_HOME", "CARGO_TARGET_DIR"];
    variable.starts_with("CARGO") && !kept.contains(&variable)
}

/// What somebody looks at first.
async fn dump(cluster: &Cluster) {
    for args in [
        "get assent --all-namespaces -o yaml",
        "get pods --all-namespaces -o wide",
        "describe pods --namespace assent-system",
        "get events --all-namespaces --sort-by=.lastTimestamp",
        "logs --namespace assent-system --selector app.kubernetes.io/component=control-plane --tail=40",
        "logs --namespace assent-system --selector policies.assent.dev/policy-server --tail=40",
    ] {
        let words: Vec<&str> = args.split(' ').collect();
        let output = cluster.kubectl.attempt(&words).await;
        let output = output.unwrap_or_else(|error| error);
        eprintln!("--- kubectl {args}\n{}", output.trim_end());
    }
}
