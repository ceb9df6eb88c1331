/* The step transaction and the change of membership, as a model that spin searches whole.
 *
 * Three workers, each home of one interval of the state and keeper of a neighbour's replica, and a
 * coordinator. Workers may die at any moment, or be suspected and killed, twice in all. What is
 * modelled: vote, record and DECIDE; update of every copy; epochs and their TABLE; building of the
 * new copies beside the old, READY and LAYOUT; going back to a checkpoint when an interval has no
 * copy left. What is not: the contents of tensors, joins, the coordinator's own death (then nobody
 * commits), and time.
 *
 * A copy's history names, for every step it has applied, the epoch in which that step's gradient
 * was finished. A step that is run again in a later epoch has another gradient, so a copy that
 * applied an undecided one, or the same step twice, has a history that nobody else has.
 *
 * What must hold stands in the assertions, and in the absence of states in which nobody can go on.
 * Each of the names in run.sh, defined, breaks one rule of the protocol; spin must then find an
 * error, else the model is too weak. */

#ifndef STEPS
#define STEPS 2
#endif
#ifndef DEATHS
#define DEATHS 2
#endif
#define N 3
#define NONE 7
#define EPOCHS (DEATHS + 2) /* numbered from 1 */

#define COPY(w, i) ((w) * N + (i))
#define PLACE(e, i) ((e) * N + (i))
#define CODE(e, k) ((e) * 4 + (k)) /* a step of an epoch */
#define HAS(set, w) (((set) >> (w)) & 1)
#define BIT(w) (1 << (w))
#define HOLDS(layout, w, i) (home[PLACE(layout, i)] == (w) || replica[PLACE(layout, i)] == (w))

mtype = { GATHER, REDUCE, VOTED, UPDATE, BUILD, READY, DONE, DEAD };

/* ---- Layouts: written once, under the number of the epoch that proposed them ---- */
byte home[EPOCHS * N];
byte replica[EPOCHS * N];

/* ---- The coordinator ---- */
byte epoch = 1;
byte members = 7;
byte decided;           /* the last recorded step */
byte log[STEPS + 1];    /* histories by number of steps, as recorded */
byte checkpoint;        /* newest one */
byte layout = 1;        /* the last recorded one */
byte unsent;            /* workers to whom the last DECIDE was not sent yet */
byte budget = DEATHS;
byte killed;            /* suspects; their agents kill them at some moment */
bool over;
/* What the TABLE of an epoch says. */
byte table_decided[EPOCHS];
byte table_log[EPOCHS];  /* the history that goes with it */
byte table_layout[EPOCHS];
bool table_reload[EPOCHS];

/* ---- Workers ---- */
mtype phase[N];
byte at[N];             /* epoch */
byte step[N];           /* the one that runs */
byte view[N];           /* number of the layout in effect */
byte vote[N];           /* sent: step of an epoch */
byte decision[N];       /* received: likewise */
byte given[N];          /* contributions to all homes are sent: likewise */
byte stamp[N * N];      /* X of an interval: steps applied + 1, 0: no copy */
byte history[N * N];
byte gradient[N * N];   /* finished G: step of an epoch, 0: none */
byte built[N * N];      /* X of the next layout beside it, like stamp */
byte built_history[N * N];

/* Copies of one age are equal, and are what was recorded. */
inline check_copies(i)
{
    byte a, b;
    for (a : 0 .. N - 1) {
        for (b : 0 .. N - 1) {
            assert(stamp[COPY(a, i)] == 0 || stamp[COPY(a, i)] != stamp[COPY(b, i)] ||
                   history[COPY(a, i)] == history[COPY(b, i)])
        }
    }
    a = 0;
    b = 0
}

#define FORGET(w, what) what[COPY(w, 0)] = 0; what[COPY(w, 1)] = 0; what[COPY(w, 2)] = 0

inline die(w)
{
    phase[w] = DEAD;
    killed = killed & (7 - BIT(w));
    at[w] = 0;
    step[w] = 0;
    view[w] = 0;
    decision[w] = 0;
    FORGET(w, stamp);
    FORGET(w, history);
    FORGET(w, gradient);
    FORGET(w, built);
    FORGET(w, built_history)
}

/* One copy is brought from step k - 1 to k. */
inline update(w, i, k)
{
    assert(stamp[COPY(w, i)] == k);               /* neither skipped nor applied twice */
    assert(gradient[COPY(w, i)] % 4 == k);
    history[COPY(w, i)] = history[COPY(w, i)] + ((gradient[COPY(w, i)] / 4) << (2 * (k - 1)));
    stamp[COPY(w, i)] = k + 1;
    gradient[COPY(w, i)] = 0;
    check_copies(i)
}

/* The new layout takes effect here: what was built becomes X, the rest is freed. Nobody else alive
 * may take himself for the home of what this worker is home of now. */
inline adopt(w, number)
{
    for (j : 0 .. N - 1) {
        stamp[COPY(w, j)] = built[COPY(w, j)];
        history[COPY(w, j)] = built_history[COPY(w, j)];
        built[COPY(w, j)] = 0;
        built_history[COPY(w, j)] = 0;
        check_copies(j);
        if
        :: home[PLACE(number, j)] == w ->
            for (other : 0 .. N - 1) {
                assert(other == w || phase[other] == DEAD ||
                       home[PLACE(view[other], j)] != other)
            }
        :: else
        fi
    }
    view[w] = number
}

inline next_step(w)
{
    step[w] = table_decided[at[w]] + 1;
    if
    :: step[w] > STEPS -> phase[w] = DONE
    :: else -> phase[w] = GATHER
    fi
}

/* ---- What a worker may wait for ---- */

/* Weights of step k - 1 come from all homes. */
#define SENDS(h, w, i) (phase[h] != DEAD && at[h] == at[w] && stamp[COPY(h, i)] >= step[w] && \
                        (phase[h] == GATHER || phase[h] == REDUCE || phase[h] == VOTED ||    \
                         phase[h] == UPDATE || phase[h] == DONE))
#define FROM(w, i) home[PLACE(view[w], i)]
#define CAN_GATHER(w) (SENDS(FROM(w, 0), w, 0) && SENDS(FROM(w, 1), w, 1) && SENDS(FROM(w, 2), w, 2))
#define NOW(w) CODE(at[w], step[w])
#define GAVE(m, w) (!HAS(members_of[w], m) || given[m] == NOW(w))
#define ALL_GAVE(w) (GAVE(0, w) && GAVE(1, w) && GAVE(2, w))
#define LACKS(w, i) (HOLDS(view[w], w, i) && gradient[COPY(w, i)] != NOW(w))
#ifdef NO_ACKNOWLEDGEMENT /* a vote does not wait for what a replica needs */
#define MUST(w, i) (home[PLACE(view[w], i)] == w && LACKS(w, i))
#else
#define MUST(w, i) LACKS(w, i)
#endif
#define CAN_VOTE(w) (!MUST(w, 0) && !MUST(w, 1) && !MUST(w, 2))
/* An interval that the new layout gives to w, and that is not built yet. */
#define TO_BUILD(w, i) (HOLDS(at[w], w, i) && built[COPY(w, i)] == 0)
#define ALL_BUILT(w) (!TO_BUILD(w, 0) && !TO_BUILD(w, 1) && !TO_BUILD(w, 2))
/* Who has X of interval i in the recorded layout and belongs to the epoch. */
#define KEEPER(e, set, i) (HAS(set, home[PLACE(table_layout[e], i)])                        \
                           -> home[PLACE(table_layout[e], i)] : replica[PLACE(table_layout[e], i)])
#define SETTLED(w, k) (at[k] == at[w])

byte members_of[N]; /* the members of the epoch that a worker is in */

/* A TABLE came. What was decided is finished, what was not is dropped; a layout that was recorded
 * is in effect although LAYOUT itself never came. */
inline take_table(w)
{
#ifndef DROP_BUILT
    if
    :: table_layout[epoch] != view[w] && phase[w] == READY -> adopt(w, table_layout[epoch])
    :: else
    fi;
#endif
#ifndef FORGET_DECIDE
    if
    :: !table_reload[epoch] && phase[w] == VOTED && table_decided[epoch] == step[w] ->
        for (i : 0 .. N - 1) {
            if
            :: HOLDS(view[w], w, i) -> update(w, i, step[w])
            :: else
            fi
        }
    :: else
    fi;
#endif
    FORGET(w, gradient);
    FORGET(w, built);
    FORGET(w, built_history);
    decision[w] = 0;
    step[w] = 0;
    at[w] = epoch;
    members_of[w] = members;
    phase[w] = BUILD
}

/* X of the next layout, from a file, from this worker, or from another that has taken the TABLE. */
inline build(w, i)
{
    if
    :: table_reload[at[w]] ->
        built[COPY(w, i)] = table_decided[at[w]] + 1;
        built_history[COPY(w, i)] = table_log[at[w]]
    :: else ->
        source = KEEPER(at[w], members_of[w], i);
        if
        :: phase[source] != DEAD ->
            assert(stamp[COPY(source, i)] == table_decided[at[w]] + 1); /* one age, and there */
            assert(history[COPY(source, i)] == table_log[at[w]]);
            built[COPY(w, i)] = stamp[COPY(source, i)];
            built_history[COPY(w, i)] = history[COPY(source, i)]
        :: else /* it died meanwhile: a new epoch will come */
        fi;
        source = 0
    fi
}

#define MAY_BUILD(w, i) (phase[w] == BUILD && TO_BUILD(w, i) &&                                 \
                         (table_reload[at[w]] || SETTLED(w, KEEPER(at[w], members_of[w], i))))

#define RECEIVES(w, i) (replica[PLACE(view[w], i)] == w && LACKS(w, i) &&                        \
                        phase[home[PLACE(view[w], i)]] != DEAD &&                                \
                        gradient[COPY(home[PLACE(view[w], i)], i)] == NOW(w))
#define LATE(w, i) (HOLDS(view[w], w, i) && stamp[COPY(w, i)] <= step[w])

proctype worker(byte me)
{
    byte i, j, other, source;
    do
    /* Death, by itself or by the agent's hand. */
    :: d_step { phase[me] != DEAD && budget > 0 -> budget--; die(me) }
    :: d_step { phase[me] != DEAD && HAS(killed, me) -> die(me) }
    :: phase[me] == DEAD -> break
    :: over -> break

    :: d_step { phase[me] == GATHER && CAN_GATHER(me) ->
        for (i : 0 .. N - 1) {
            assert(stamp[COPY(FROM(me, i), i)] == step[me]); /* never weights of another step */
            assert(at[me] < epoch || history[COPY(FROM(me, i), i)] == log[step[me] - 1])
        }
        given[me] = NOW(me);
        phase[me] = REDUCE;
        i = 0
    }
    /* A home adds up what all gave; then its replica receives the sum. */
    :: d_step { phase[me] == REDUCE && ALL_GAVE(me) &&
                (home[PLACE(view[me], 0)] == me && LACKS(me, 0) ||
                 home[PLACE(view[me], 1)] == me && LACKS(me, 1) ||
                 home[PLACE(view[me], 2)] == me && LACKS(me, 2)) ->
        for (i : 0 .. N - 1) {
            if
            :: home[PLACE(view[me], i)] == me -> gradient[COPY(me, i)] = NOW(me)
            :: else
            fi
        }
        i = 0
    }
    :: d_step { (phase[me] == REDUCE || phase[me] == VOTED) && RECEIVES(me, 0) ->
        gradient[COPY(me, 0)] = NOW(me) }
    :: d_step { (phase[me] == REDUCE || phase[me] == VOTED) && RECEIVES(me, 1) ->
        gradient[COPY(me, 1)] = NOW(me) }
    :: d_step { (phase[me] == REDUCE || phase[me] == VOTED) && RECEIVES(me, 2) ->
        gradient[COPY(me, 2)] = NOW(me) }
    :: d_step { phase[me] == REDUCE && CAN_VOTE(me) -> vote[me] = NOW(me); phase[me] = VOTED }
#ifdef UPDATE_EARLY /* before the record */
    :: d_step { phase[me] == VOTED -> phase[me] = UPDATE }
#else
    :: d_step { phase[me] == VOTED && decision[me] == NOW(me) -> phase[me] = UPDATE }
#endif
    /* Copy by copy, to the end, whatever comes. */
    :: d_step { phase[me] == UPDATE && LATE(me, 0) -> update(me, 0, step[me]) }
    :: d_step { phase[me] == UPDATE && LATE(me, 1) -> update(me, 1, step[me]) }
    :: d_step { phase[me] == UPDATE && LATE(me, 2) -> update(me, 2, step[me]) }
    :: d_step { phase[me] == UPDATE && !LATE(me, 0) && !LATE(me, 1) && !LATE(me, 2) ->
        decision[me] = 0;
        step[me]++;
        if
        :: step[me] > STEPS -> phase[me] = DONE
        :: else -> phase[me] = GATHER
        fi
    }

    :: d_step { HAS(members, me) && phase[me] != DEAD && phase[me] != UPDATE && at[me] < epoch ->
        take_table(me); i = 0; j = 0; other = 0 }
    :: d_step { MAY_BUILD(me, 0) -> build(me, 0) }
    :: d_step { MAY_BUILD(me, 1) -> build(me, 1) }
    :: d_step { MAY_BUILD(me, 2) -> build(me, 2) }
    :: d_step { phase[me] == BUILD && ALL_BUILT(me) ->
        phase[me] = READY;
#ifdef FREE_EARLY /* before LAYOUT */
        FORGET(me, stamp);
        FORGET(me, history);
        j = 0
#endif
    }
    :: d_step { phase[me] == READY && layout == at[me] ->
        adopt(me, at[me]); next_step(me); j = 0; other = 0 }
    od
}

/* ---- The coordinator ---- */

#ifdef OLD_VOTES /* of epochs that are over count */
#define VOTED_FOR(w, k) (!HAS(members, w) || vote[w] % 4 == (k))
#else
#define VOTED_FOR(w, k) (!HAS(members, w) || vote[w] == CODE(epoch, k))
#endif
#define ALL_VOTED(k) (VOTED_FOR(0, k) && VOTED_FOR(1, k) && VOTED_FOR(2, k))
#define GONE(w) (HAS(members, w) && phase[w] == DEAD)
#ifdef UNCONFIRMED /* a suspect is taken for dead */
#define LOST(w) (GONE(w) || HAS(members, w) && HAS(killed, w))
#else
#define LOST(w) GONE(w)
#endif
#define IN(w, p) (!HAS(members, w) || phase[w] == p && at[w] == epoch)
#define ALL_IN(p) (IN(0, p) && IN(1, p) && IN(2, p))
#define ALIVE(w) (((w) == 0 || (w) == 1 || (w) == 2) && HAS(members, w))

/* Only what was lost is dealt out again, to anybody. */
inline deal(i)
{
    if
    :: ALIVE(home[PLACE(layout, i)]) -> home[PLACE(epoch, i)] = home[PLACE(layout, i)]
    :: else ->
        if
        :: HAS(members, 0) -> home[PLACE(epoch, i)] = 0
        :: HAS(members, 1) -> home[PLACE(epoch, i)] = 1
        :: HAS(members, 2) -> home[PLACE(epoch, i)] = 2
        fi
    fi;
    if
    :: ALIVE(replica[PLACE(layout, i)]) && replica[PLACE(layout, i)] != home[PLACE(epoch, i)] ->
        replica[PLACE(epoch, i)] = replica[PLACE(layout, i)]
    :: HAS(members, 0) && home[PLACE(epoch, i)] != 0 -> replica[PLACE(epoch, i)] = 0
    :: HAS(members, 1) && home[PLACE(epoch, i)] != 1 -> replica[PLACE(epoch, i)] = 1
    :: HAS(members, 2) && home[PLACE(epoch, i)] != 2 -> replica[PLACE(epoch, i)] = 2
    :: replica[PLACE(epoch, i)] = NONE
    fi
}

#ifdef NO_RELOAD
#define COPYLESS(i) false
#else
#define COPYLESS(i) (!ALIVE(home[PLACE(layout, i)]) && !ALIVE(replica[PLACE(layout, i)]))
#endif

inline open_epoch()
{
    for (i : 0 .. N - 1) {
        if
        :: LOST(i) -> members = members & (7 - BIT(i))
        :: else
        fi
    }
    i = 0;
    epoch++;
    unsent = 0;
    if
    :: COPYLESS(0) || COPYLESS(1) || COPYLESS(2) ->
        table_reload[epoch] = true;
        for (i : checkpoint + 1 .. STEPS) {
            log[i] = 0
        }
        i = 0;
        decided = checkpoint
    :: else
    fi;
    table_decided[epoch] = decided;
    table_log[epoch] = log[decided];
    table_layout[epoch] = layout;
    deal(0);
    deal(1);
    deal(2)
}

proctype coordinator()
{
    byte i;
    do
    /* The record is the commit. The state before the step may have become a checkpoint. */
    :: atomic { decided < STEPS && ALL_VOTED(decided + 1) ->
        if
        :: checkpoint = decided
        :: true
        fi;
        decided++;
        log[decided] = log[decided - 1] + (epoch << (2 * (decided - 1)));
        unsent = members
    }
    :: d_step { HAS(unsent, 0) -> unsent = unsent & 6; decision[0] = CODE(epoch, decided) }
    :: d_step { HAS(unsent, 1) -> unsent = unsent & 5; decision[1] = CODE(epoch, decided) }
    :: d_step { HAS(unsent, 2) -> unsent = unsent & 3; decision[2] = CODE(epoch, decided) }
    :: atomic { budget > 0 && !over ->
        if
        :: HAS(members, 0) && !HAS(killed, 0) && phase[0] != DEAD -> killed = killed | 1
        :: HAS(members, 1) && !HAS(killed, 1) && phase[1] != DEAD -> killed = killed | 2
        :: HAS(members, 2) && !HAS(killed, 2) && phase[2] != DEAD -> killed = killed | 4
        fi;
        budget--
    }
    :: atomic { LOST(0) || LOST(1) || LOST(2) -> open_epoch() }
    :: d_step { layout != epoch && ALL_IN(READY) ->
        layout = epoch;
        for (i : 0 .. N - 1) { /* everybody has left the older epochs: they leave no trace */
            given[i] = 0;
#ifndef OLD_VOTES
            vote[i] = 0
#endif
        }
        i = 0
    }
    :: d_step { ALL_IN(DONE) -> assert(decided == STEPS); over = true }
    :: over -> break
    od
}

init
{
    byte w;
    atomic {
        table_layout[1] = 1;
        for (w : 0 .. N - 1) {
            home[PLACE(1, w)] = w;
            replica[PLACE(1, w)] = (w + 1) % N;
            stamp[COPY(w, w)] = 1;
            stamp[COPY((w + 1) % N, w)] = 1;
            phase[w] = GATHER;
            at[w] = 1;
            view[w] = 1;
            step[w] = 1;
            members_of[w] = members
        }
        w = 0;
        run worker(0);
        run worker(1);
        run worker(2);
        run coordinator()
    }
}
