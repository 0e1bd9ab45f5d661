//! `assent up`: everything in one process, with its state on the terminal.

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
/// Policies are manifests in a directory, which is watched. Requests go to POST /admit of --http, as an API
/// server's would. The state of each policy is shown as a table, or as lines where the output is no terminal.
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
  curl -s --json @review.json http://127.0.0.1:15014/admit
  curl -s http://127.0.0.1:15014/status

Ends with exit code 0 on Ctrl-C or SIGTERM, with 1 where it can't start.";

/// People can't follow faster, and a thousand policies are not drawn for each of their changes.
const PACE: Duration = Duration::from_millis(50);

/// What ends the process in good order.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

// === impl Args ===

impl Args {
    pub(crate) fn run(self, logs: &LogArgs) -> anyhow::Result<Exit> {
        let Self { up } = self;
        let screen = Screen::detect();
        logs.init("info", screen.clone())?;
        let runtime = tokio::runtime::Runtime::new().context("failed to start the runtime")?;
        runtime.block_on(serve(up, Display::new(screen)))?;
        Ok(Exit::Yes)
    }
}

/// The program that vets modules, which is this one.
pub(crate) fn this_program() -> anyhow::Result<PathBuf> {
    std::env::current_exe().context("failed to find this program")
}

async fn serve(args: UpArgs, mut display: Display) -> anyhow::Result<()> {
    let mut stop = Stop::listen()?;
    let vetter = Vetter::new(this_program()?, vec!["vet".into()]);
    let scheme = if args.tls_cert.is_some() {
        "https"
    } else {
        "http"
    };
    let mut running = tokio::select! {
        started = standalone::start(args, vetter) => started?,
        () = stop.asked() => return Ok(()),
    };
    display.say(&format!("discovery: {scheme}://{}", running.discovery));
    display.say(&format!("http: http://{}", running.http));
    let failure = show(&mut running, &mut display, &mut stop).await;
    display.leave();
    tokio::select! {
        () = running.stop() => {}
        // Who asks twice does not want to wait.
        () = stop.asked() => {}
    }
    failure.map_or(Ok(()), Err)
}

/// Shows the state until something ends; some where nobody asked for the end.
async fn show(
    running: &mut Running,
    display: &mut Display,
    stop: &mut Stop,
) -> Option<anyhow::Error> {
    let control = running.control.clone();
    let mut changes = control.changes();
    loop {
        changes.borrow_and_update();
        let look = async {
            if let Ok(objects) = control.objects().await {
                let rows: Vec<Row> = objects.iter().map(Row::from).collect();
                display.show(rows);
            }
            // Without a loop there are no more changes: what failed says so.
            if changes.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            sleep(PACE).await;
        };
        tokio::select! {
            () = look => {}
            () = stop.asked() => return None,
            failure = running.failed() => return Some(failure),
        }
    }
}

// === impl Stop ===

impl Stop {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
