//! Asks without pause, and writes down every answer that is not what it must be.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard},
    time::{Duration, Instant},
};

use assent_e2e::kube::api;
use kube::Client;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::installation::{
    Installation, SHOP, WORDS, exempting, pod, policy_path, within_patience,
};

/// What is asked; nothing of it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// A privileged pod: the policy must say no, in its own words.
    Privileged,
    /// Another pod: it must be taken.
    Compliant,
    /// An edit of the policy: the control plane must take it.
    Edit,
}

/// Evaluators are asked about these.
pub(crate) const PODS: [Question; 2] = [Question::Privileged, Question::Compliant];

const ALL: [Question; 3] = [Question::Privileged, Question::Compliant, Question::Edit];

/// Between two questions of a kind: all together are some twenty a second.
const PAUSE: Duration = Duration::from_millis(100);

/// So many right answers in a row mean that all is well.
const CALM: u32 = 5;

/// Asks until it is dropped.
pub(crate) struct Witness {
    book: Arc<Mutex<Book>>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Book {
    answers: usize,
    /// Right answers in a row, by question.
    streaks: [u32; 3],
    wrong: Vec<Wrong>,
}

/// An answer that must not be.
#[derive(Clone, Debug)]
struct Wrong {
    question: Question,
    /// Something was let through: no fault excuses that.
    unenforced: bool,
    words: String,
}

// === impl Witness ===

impl Witness {
    pub(crate) fn start(site: &Installation) -> Self {
        let book = Arc::default();
        let ask = |question| tokio::spawn(ask_on(question, site.client.clone(), Arc::clone(&book)));
        let tasks = ALL.map(ask).into();
        Self { book, tasks }
    }

    /// Does something. Meanwhile nothing may be let through, and only questions of `may_fail`
    /// may be left without an answer; afterwards all must be answered.
    pub(crate) async fn through<T>(
        &self,
        what: &str,
        may_fail: &[Question],
        step: impl Future<Output = T>,
    ) -> T {
        let begun = Instant::now();
        let (asked, first) = self.so_far();
        let done = step.await;
        self.calm(what).await;
        let wrong = self.lock().wrong[first..].to_vec();
        let excused = |w: &Wrong| !w.unenforced && may_fail.contains(&w.question);
        let inexcusable = wrong.iter().filter(|w| !excused(w));
        let inexcusable: Vec<String> = inexcusable.map(Wrong::to_string).collect();
        assert!(inexcusable.is_empty(), "while {what}: {inexcusable:#?}");
        let (took, failed) = (begun.elapsed().as_secs_f32(), wrong.len());
        let asked = self.so_far().0 - asked;
        eprintln!("{took:5.1} s  while {what}: {failed} of {asked} questions failed");
        done
    }

    /// Waits until every question is answered as it must be, some times in a row.
    async fn calm(&self, what: &str) {
        self.lock().streaks = [0; 3];
        let calm = async || self.lock().streaks.iter().all(|streak| *streak >= CALM);
        within_patience(&format!("calm after {what}"), calm).await;
    }

    /// Answers, and how many of them were wrong.
    fn so_far(&self) -> (usize, usize) {
        let book = self.lock();
        (book.answers, book.wrong.len())
    }

    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().expect("the lock must not be poisoned")
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if std::thread::panicking() {
            for wrong in &self.lock().wrong {
                eprintln!("--- the witness minded: {wrong}");
            }
        }
    }
}

async fn ask_on(question: Question, client: Client, book: Arc<Mutex<Book>>) {
    for number in 0_u32.. {
        let answer = question.ask(&client, number).await;
        let book = book.lock();
        book.expect("the lock must not be poisoned")
            .note(question, answer);
        tokio::time::sleep(PAUSE).await;
    }
}

// === impl Wrong ===

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.question, self.words)
    }
}

// === impl Book ===

impl Book {
    fn note(&mut self, question: Question, answer: Result<(), Wrong>) {
        self.answers += 1;
        let streak = &mut self.streaks[question as usize];
        *streak = answer.as_ref().map_or(0, |()| *streak + 1);
        self.wrong.extend(answer.err());
    }
}

// === impl Question ===

impl Question {
    async fn ask(self, client: &Client, number: u32) -> Result<(), Wrong> {
        let answer = match self {
            Self::Privileged => try_pod(client, true).await,
            Self::Compliant => try_pod(client, false).await,
            Self::Edit => try_edit(client, number).await,
        };
        match (self, answer) {
            (Self::Privileged, Ok((201, _))) => Err(self.wrong(true, "it was taken".into())),
            (Self::Privileged, Ok((_, status))) if words(&status).contains(WORDS) => Ok(()),
            (Self::Compliant, Ok((201, _))) | (Self::Edit, Ok((200, _))) => Ok(()),
            // Somebody else wrote it in the same moment.
            (Self::Edit, Ok((409, _))) => Ok(()),
            (_, Ok((code, status))) => Err(self.wrong(false, format!("{code} {}", words(&status)))),
            (_, Err(why)) => Err(self.wrong(false, why)),
        }
    }

    fn wrong(self, unenforced: bool, words: String) -> Wrong {
        Wrong {
            question: self,
            unenforced,
            words,
        }
    }
}

fn words(status: &Value) -> String {
    status["message"].to_string()
}

type Answer = Result<(u16, Value), String>;

async fn try_pod(client: &Client, privileged: bool) -> Answer {
    let pod = pod("witness", "localhost/busybox:1", privileged);
    let path = format!("/api/v1/namespaces/{SHOP}/pods?dryRun=All");
    api::try_ask(client, "POST", &path, &pod).await
}

/// A change of the spec, or nobody would be asked about it.
async fn try_edit(client: &Client, number: u32) -> Answer {
    let edit = exempting(&format!("example.com/never-{number}:*"));
    let path = format!("{}?dryRun=All", policy_path());
    api::try_ask(client, "PATCH", &path, &edit).await
}
