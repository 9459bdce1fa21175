-- The jobs that may still run, and the history: what every read asks, with the same columns (stores/kernel). Tokens are no columns.
create or replace view {schema}.live_jobs as select {live_job} from {schema}.live;

create or replace view {schema}.past_jobs as select {past_job} from {schema}.history;
