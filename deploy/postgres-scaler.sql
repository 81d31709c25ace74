-- The database role of an autoscaler (deploy/kubernetes/keda-sql): made when it is missing, given the password of the secret
-- each time. Run as postgres-roles.sql is run, and after it; then, as soong_owner: soong migrate --grant-scaler soong_scaler
\set ON_ERROR_STOP on
\set QUIET on
\set scaler_file :secrets/postgres_password_scaler
\set scaler_password `cat :'scaler_file'`
-- An empty password would let nobody in, and say so nowhere.
SELECT 1 / (length(:'scaler_password') > 15)::int AS password_was_read \gset

SELECT 'CREATE ROLE soong_scaler' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'soong_scaler') \gexec
-- It asks once in a few seconds. More at once, or for longer, is a mistake or an attack.
ALTER ROLE soong_scaler
    LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS CONNECTION LIMIT 5 PASSWORD :'scaler_password';
ALTER ROLE soong_scaler SET statement_timeout = '5s';
SELECT format('GRANT CONNECT ON DATABASE %I TO soong_scaler', current_database()) \gexec
