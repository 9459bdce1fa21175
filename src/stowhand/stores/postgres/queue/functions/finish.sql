-- The last step of an installation.

select {schema}.make_days(clock_timestamp(), 3);

revoke all on all functions in schema {schema} from public;
