//! `assent up`: runs everything in one process and shows its state on the terminal.

use std::{path::PathBuf, time::Duration};

use anyhow::Context as _;
use assent_control_plane::standalone::{self, Running, UpArgs};
use assent_modules::vet::Vetter;
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::sleep,
};

use crate::{exit::Exit, logs::LogArgs, row::Row};

mod display;
pub(crate) mod screen;

use display::Display;
use screen::Screen;

/// Runs a control plane and evaluators on this machine, without Kubernetes.
///
/// Policies are manifests in a directory, which is watched. Send requests to POST /admit of --http, in the form
/// of an API server. The state of each policy is shown as a table, or as lines if the output is not a terminal. On a
/// terminal log lines below errors are not shown, unless -v or --log-level asks for them; --log-file has them all.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    up: UpArgs,
}

const EXAMPLES: &str = "\
Examples:
  assent up --policies ./policies
  assent up --policies ./policies --state ./state --replicas 5
  assent up --log-file assent.log
  curl -s --json @review.json http://127.0.0.1:15014/admit
  curl -s http://127.0.0.1:15014/status
  assent up --policies ./policies --authz 127.0.0.1:9191

Ends with exit code 0 on Ctrl-C or SIGTERM, with 1 if it cannot start.";

/// Nobody can follow faster updates, and drawing a thousand policies for each change would be costly.
const PACE: Duration = Duration::from_millis(50);

/// Signals that shut the process down.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self, logs: &LogArgs) -> anyhow::Result<Exit> {
        let Self { up } = self;
        let screen = Screen::detect();
        // On a terminal the table has the problems of policies; only other errors are printed above it.
        let default = match screen {
            Some(_) if !logs.has_file() => "error,assent_local::api=off",
            _ => "info",
        };
        logs.init(default, screen.clone())?;
        let runtime = tokio::runtime::Runtime::new().context("failed to start the runtime")?;
        runtime.block_on(serve(up, Display::new(screen)))?;
        Ok(Exit::Yes)
    }
}

/// The path of this program, which also vets modules.
pub(crate) fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("failed to find this program")
}

async fn serve(args: UpArgs, mut display: Display) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let vetter = Vetter::new(this_program()?, vec!["vet".into()]);
    let scheme = if args.tls_cert.is_some() {
        "https"
    } else {
        "http"
    };
    let mut running = tokio::select! {
        started = standalone::start(args, vetter) => started?,
        () = signals.received() => return Ok(()),
    };
    display.print(&format!("discovery: {scheme}://{}", running.discovery));
    display.print(&format!("http: http://{}", running.http));
    if let Some(authz) = running.authz {
        display.print(&format!("authz: {authz}"));
    }
    let failure = show(&mut running, &mut display, &mut signals).await;
    display.leave();
    tokio::select! {
        () = running.stop() => {}
        // A second signal ends the process at once.
        () = signals.received() => {}
    }
    failure.map_or(Ok(()), Err)
}

/// Shows the state until a signal arrives (none) or the control plane ends by itself (some).
async fn show(
    running: &mut Running,
    display: &mut Display,
    signals: &mut Signals,
) -> Option<anyhow::Error> {
    let control = running.control.clone();
    let mut changes = control.changes();
    loop {
        changes.borrow_and_update();
        let refresh = async {
            if let (Ok(objects), Ok(problems)) = (control.objects().await, control.problems().await)
            {
                let problems = problems.iter().map(Row::from);
                display.show(objects.iter().map(Row::from).chain(problems).collect());
            }
            // The event loop has ended; its error is reported below.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            sleep(PACE).await;
        };
        tokio::select! {
            () = refresh => {}
            () = signals.received() => return None,
            failure = running.failed() => return Some(failure),
        }
    }
}

// === impl Signals ===

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn received(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
